"""Norms of queries and keys, by their names, that act on something else, or that a sibling acts in place of.

The output of each such norm is changed in turn: a norm of the queries must change the queries of its attention, one of
the keys the keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.projection_names import read_name

FINDINGS = ("norm-swapped",)

_NORM = re.compile(r"norm|(^|_)ln(_|$)", re.IGNORECASE)
_WORDS = {"q": "queries", "k": "keys", "v": "values"}
_OTHER = {"q": "k", "query": "key", "queries": "keys", "k": "q", "key": "query", "keys": "queries"}


def check(patient: Patient) -> Iterator[Finding]:
    norms = _norms(patient.module)
    pairs = {path: _sibling(path) for path in norms if _sibling(path) in norms}
    if not pairs:
        raise NotApplicable("it has no norms of queries and of keys, by their names")
    calls = dict.fromkeys(pairs, 0)
    plain = look(patient, change=lambda module: _counting(module, calls))
    for path, other in pairs.items():
        if not calls[path] and calls[other] == 2:
            yield _finding(patient, f"{path} is never called, and {other} is called twice")
            return
    for path in pairs:
        changed = calls[path] == 1 and _changed(patient, plain, path)
        if changed and norms[path] not in changed:
            where = " and ".join(_WORDS[x] for x in changed)
            yield _finding(patient, f"{path} acts on the {where}, and the {_WORDS[norms[path]]} do not depend on it")
            return


def _norms(module: nn.Module) -> dict[str, str]:
    """Path -> "q" or "k"."""
    found = {}
    for path, part in module.named_modules():
        last = path.rpartition(".")[2]
        if not _NORM.search(last) or isinstance(part, (nn.Identity, nn.ModuleList, nn.Sequential)):
            continue
        letters = {read_name(word).letters for word in re.split(r"_|norm", last) if word in _OTHER}
        if len(letters) == 1:
            found[path] = letters.pop()
    return found


def _sibling(path: str) -> str:
    holder, dot, last = path.rpartition(".")
    return holder + dot + "".join(_OTHER.get(x, x) for x in re.split(r"(_|norm)", last))


def _counting(module: nn.Module, calls: dict[str, int]) -> None:
    def counted(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            calls[path] += 1

        return hook

    for path in calls:
        module.get_submodule(path).register_forward_hook(counted(path))


def _changed(patient: Patient, plain: Anatomy, path: str) -> list[str]:
    """Which of queries, keys and values change with its output, in the first attention where any does."""

    def louder(_: nn.Module, __: object, out: object) -> object:
        if not isinstance(out, Tensor):
            return None
        return out * torch.linspace(1.5, 2.5, out.shape[-1]).to(out)

    sites = look(patient, change=lambda module: _hooked(module.get_submodule(path), louder)).sites
    if len(sites) != len(plain.sites):
        return []
    for a, b in zip(plain.sites, sites, strict=True):
        if a.grid is None or b.grid is None or a.contraction is None or b.contraction is None:
            return []
        both = {"q": (a.q, b.q), "k": (a.k, b.k), "v": (a.contraction.values.value, b.contraction.values.value)}
        found = [name for name, (x, y) in both.items() if x.shape == y.shape and not torch.equal(x, y)]
        if found:
            return found
    return []


def _hooked(part: nn.Module, hook: Callable[..., object]) -> None:
    part.register_forward_hook(hook)


def _finding(patient: Patient, evidence: str) -> Finding:
    return Finding(
        "norm-swapped",
        "bug",
        evidence,
        "pass queries through the norm of the queries, and keys through that of the keys",
        patient.where,
    )
