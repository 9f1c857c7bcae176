"""Heads that compute the same numbers or share one projection, projections of 0, heads whose weights meet no values.

Two heads with the same queries, keys and values are one head computed twice, whatever the reason: a slice that was
copied, a loop that fills every head from the first, a checkpoint that was loaded wrongly. A projection of zeros gives
every key the same weight, or adds nothing.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import Probe
from headwise.doctor.reading.site import Site
from headwise.doctor.source import source_of

FINDINGS = ("projection-zero", "projection-reused", "head-idle")

_SHARED = re.compile(r"\bshar|\btied|same (\w+ ){0,3}(matri|project|weight|layer|linear)", re.IGNORECASE)
_WORDS = {"q": "queries", "k": "keys", "v": "values"}
_EFFECT = {
    "q": "every key gets the same weight, whatever the query",
    "k": "every key gets the same weight, whatever it is",
    "v": "the attention adds nothing to its output",
}
# Zeros that are meant: muP's queries, adapters and gates that begin at 0.
_ON_PURPOSE = re.compile(
    r"(init|weight|param|proj)\S*.*(zeros_\(|zero_\(\)|fill_\(0|constant_\([^)]*,\s*(val=)?0(\.0*)?\))"
    r"|zeros_\(.*(weight|proj)|zero.?init|\bmup\b|μP",
    re.IGNORECASE,
)


def check(patient: Patient) -> Iterator[Finding]:
    sites = [site for site in patient.see().sites if site.grid is not None and site.contraction is not None]
    if not sites:
        raise NotApplicable("queries, keys and values are not known")
    yield from _of_slices(patient)
    for site in sites:
        zero = [name for name in "qkv" if not bool(_of(site, name).any())]
        if zero:
            patient.excused.add("projection-zero")
            yield _zero(patient, site, zero)
            return
        if not _all_learn(patient, site):
            yield from _idle(site)
        yield from _tied(site)


def _of_slices(patient: Patient) -> Iterator[Finding]:
    """One small projection that every head applies to its own slice of the input: it was split into heads too early.

    Some do that on purpose, for few parameters, and say so.
    """
    probe = Probe(patient)
    if _SHARED.search(text_of_all(probe.module)):
        return
    inputs = probe.inputs()
    given = [(x.shape[-1], x.flatten().sort().values) for x in inputs.tensors().values()]
    found: dict[str, tuple[int, int]] = {}

    def keep(layer: nn.Module, args: tuple[Any, ...], name: str) -> None:
        x = args[0] if args else None
        if not isinstance(x, Tensor):
            return
        small, numbers = cast(nn.Linear, layer).in_features, x.flatten().sort().values
        for width, y in given:
            if small < width and width % small == 0 and numbers.shape == y.shape and torch.equal(numbers, y):
                found.setdefault(name, (width // small, small))

    for name, layer in probe.module.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(functools.partial(keep, name=name))
    probe.attempt(inputs)
    if len(found) > 1:
        heads, small = next(iter(found.values()))
        yield Finding(
            "projection-reused",
            patient.severity("projection-reused: of slices", "bug"),
            f"{', '.join(found)} take {small} of the input's numbers at a time: all {heads} heads share them, and each "
            "head sees only its own slice of the input",
            "project first, then split into heads: Linear(width, width) before the view; or say that heads share it",
            patient.where,
            numbers={"heads": float(heads), "width": float(small)},
        )


def _all_learn(patient: Patient, site: Site) -> bool:
    """Whether a gradient reaches every number of the queries' weights: then no head is idle."""
    names = [seed.name for seed in site.projections["q"] if seed.name]
    there = patient.reached.there
    return bool(names) and all(name in there and bool(there[name].all()) for name in names)


def _of(site: Site, name: str) -> Tensor:
    """[B, H, L, D]"""
    return {"q": lambda: site.q, "k": lambda: site.k, "v": lambda: site.v}[name]()


def _zero(patient: Patient, site: Site, names: list[str]) -> Finding:
    meant = _zeros_on_purpose(patient)
    what = " and ".join(_WORDS[name] for name in names)
    weights = ", ".join(dict.fromkeys(seed.name for name in names for seed in site.projections[name] if seed.name))
    both = names[:2] == ["q", "k"]
    stuck = "; each is 0 because of the other's gradient, so neither learns" if both else ""
    return Finding(
        "projection-zero",
        "risk" if meant and not both else "bug",
        f"the {what} are 0 for every input{f' ({weights})' if weights else ''}: {_EFFECT[names[0]]}{stuck}"
        + (". Its code sets weights to 0, which may be meant as a beginning" if meant else ""),
        "initialise the projection, or load its weights",
        site.product.where,
        numbers={"zero": float(len(names))},
    )


def _zeros_on_purpose(patient: Patient) -> bool:
    """Whether the code of the module, or of its file, sets a weight (and not a bias) to 0."""
    kinds = {kind for part in patient.module.modules() for kind in type(part).__mro__}
    sources = [source_of(kind) for kind in kinds if not kind.__module__.startswith("torch.")]
    text = [patient.source, *(x.text for x in sources if x is not None)]
    if patient.where is not None:
        with contextlib.suppress(OSError, UnicodeError):
            text.append(Path(patient.where.file).read_text(encoding="utf-8"))
    lines = (line for part in text for line in part.splitlines())
    return any(_ON_PURPOSE.search(line) and "bias" not in line for line in lines)


def _idle(site: Site) -> Iterator[Finding]:
    """Heads whose softmax is computed and then not multiplied with any values."""
    heads = site.weights.shape[1]
    computed = site.weights.isfinite().flatten(2).any(-1).all(0)
    met = torch.zeros_like(computed)
    for seed in site.trace.seeds:  # heads may be multiplied with their values in several products
        if seed.order > site.softmax.order and seed.left is not None and seed.right is not None:
            for x in (seed.left, seed.right):
                met |= site.cells(x.value, x.source).isfinite().flatten(2).any(-1).any(0)
    idle = (computed & ~met).nonzero().flatten().tolist()
    if heads < 2 or not idle or len(idle) == heads:
        return
    yield Finding(
        "head-idle",
        "bug",
        f"the weights of {len(idle)} of {heads} heads ({_some(idle)}) are not multiplied with any values: "
        "their queries and keys have no effect",
        "multiply the weights of every head with the values of that head",
        site.softmax.where,
        numbers={"idle": float(len(idle)), "heads": float(heads)},
    )


def _tied(site: Site) -> Iterator[Finding]:
    q, k, v = (_of(site, name).double() for name in "qkv")
    heads = q.shape[1]
    if heads < 2 or not (k.shape[1] == v.shape[1] == heads) or q.shape[2] < 2:
        return
    groups: list[list[int]] = []
    for head in range(heads):
        group = next((g for g in groups if all(_equal(x[:, g[0]], x[:, head]) for x in (q, k, v))), None)
        if group is None:
            groups.append([head])
        else:
            group.append(head)
    alike = [g for g in groups if len(g) > 1]
    if not alike:
        return
    flat = q.shape[-1] > 1 and all(bool((x[:, alike[0][0]].std(-1) < 1e-6 * x.abs().max()).all()) for x in (q, k))
    yield Finding(
        "projection-reused",
        "risk" if flat else "bug",  # constant weights, as in a test, make everything alike
        f"heads compute identical numbers: {'; '.join(_some(g) for g in alike[:4])} have the same queries, keys and "
        f"values, so that {heads} heads are {len(groups)}",
        "give every head its own part of the projections",
        site.product.where,
        numbers={"heads": float(heads), "different": float(len(groups))},
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-5, atol=1e-6 * float(a.abs().max())))


def _some(heads: list[int]) -> str:
    return ", ".join(map(str, heads[:8])) + (" …" if len(heads) > 8 else "")
