"""The law that a norm belongs to one tensor and one token: its statistics, and what it acts on.

Taken over the sequence, statistics let every token influence the queries and keys of every other before any mask acts;
taken over the heads, each feature competes with those of other heads. And a norm that is named after the queries must
change the queries, one of the keys the keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import Patient
from headwise.doctor.probing.probe import moved
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.events import Norm
from headwise.doctor.reading.projection_names import PLURALS, read_name
from headwise.doctor.reading.site import Site
from headwise.language import Sentence, join

FINDINGS = ("norm-axis", "norm-swapped")

_OVER_TOKENS = (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)  # by design
_MIXED, _STEADY = 1e-4, 2e-3


def check(patient: Patient) -> Iterator[Finding]:
    sites = _known(patient.see())
    if sites:
        yield from _over_positions(patient, sites[0])  # those of later layers depend on all tokens anyway
        yield from _over_heads(sites[0])
        yield from _of_another(patient, sites)


def _known(anatomy: Anatomy) -> list[Site]:
    return [site for site in anatomy.sites if site.known]


def _vectors(site: Site) -> dict[str, Tensor]:
    """Queries, keys and values, [B, H, L, D]."""
    return {name: getattr(site, name).to(torch.float64) for name in "qkv"}


def _over_positions(patient: Patient, site: Site) -> Iterator[Finding]:
    norm = _norm(site)
    short = patient.interface.length is not None and patient.interface.length < 3
    if norm is None or short or any(isinstance(x, _OVER_TOKENS) for x in patient.module.modules()):
        return
    others = _known(look(patient, edit=lambda inputs: moved(inputs, 1, 2, queries=True)))
    if not others or others[0].q.shape != site.q.shape:
        return
    after = _vectors(others[0])
    for name, before in _vectors(site).items():
        change = (before[1] - after[name][1]).abs().amax((0, 2)) / before[1].abs().max()
        change[2] = 0
        if float(change.max()) > _MIXED:
            yield _over(
                Sentence(
                    "after a change of position 2 alone, the {vectors} of the other positions change by {change:.2g} "
                    "of their size: {name} takes its statistics over the positions"
                ).format(vectors=PLURALS[name], change=float(change.max()), name=norm.name),
                norm.where,
            )
            return


def _norm(site: Site) -> Norm | None:
    """The last statistic over several positions before the scores. A mean alone may be a pooling: it counts if
    a root is taken too, as in a norm that is written out.
    """
    before = [x for x in site.trace.norms if x.order < site.softmax.order]
    certain = [x for x in before if x.name != "mean" or site.trace.roots]
    return max(certain, key=lambda x: (x.name != "mean", x.order), default=None)


def _over_heads(site: Site) -> Iterator[Finding]:
    for name, x in _vectors(site).items():
        raw = None if name == "v" or min(x.shape[1], x.shape[-1]) < 2 else site.raw(name)
        if raw is not None and x.shape == raw.shape and not steady(raw, 1) and steady(x, 1) and not steady(x, -1):
            yield _over(
                Sentence(
                    "for every feature the {vectors} of the {heads} heads together have the same size, and those of "
                    "one head do not: they are normalised over the heads"
                ).format(vectors=PLURALS[name], heads=x.shape[1]),
                site.product.where,
            )
            return


def steady(x: Tensor, dim: int) -> bool:
    """Return whether all vectors along a dim have the same size, as behind a norm."""
    size = x.norm(dim=dim)
    return bool(size.std() < _STEADY * size.mean())


def _over(evidence: str, where: Where | None) -> Finding:
    return Finding("norm-axis", "bug", evidence, "normalise each token alone, over its features (dim=-1)", where)


def _of_another(patient: Patient, sites: list[Site]) -> Iterator[Finding]:
    """Norms of queries and keys, by their names, that act on something else."""
    names = {path: letter for path, _ in patient.module.named_modules() if (letter := _letter(path))}
    if set(names.values()) != {"q", "k"}:
        return
    for path, letter in names.items():
        calls: list[nn.Module] = []

        def louder(module: nn.Module, path: str = path, calls: list[nn.Module] = calls) -> None:
            def change(part: nn.Module, _: object, out: object) -> object:
                calls.append(part)
                return out * torch.linspace(1.5, 2.5, out.shape[-1]).to(out) if isinstance(out, Tensor) else None

            module.get_submodule(path).register_forward_hook(change)

        others = _known(look(patient, change=louder))
        if len(calls) != 1 or len(others) != len(sites):
            continue
        changes = (_changed(*map(_vectors, pair)) for pair in zip(sites, others, strict=True))
        acts_on = next(filter(None, changes), "")  # in the first attention where anything changes
        if acts_on and letter not in acts_on:
            yield Finding(
                "norm-swapped",
                "bug",
                Sentence("{path} acts on the {these}, and the {those} do not depend on it").format(
                    path=path, these=join((PLURALS[x] for x in acts_on), " and "), those=PLURALS[letter]
                ),
                "pass queries through the norm of the queries, and keys through that of the keys",
                patient.where,
            )
            return


def _changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> str:
    """The names of the tensors that are not the same as before."""
    return "".join(x for x in before if before[x].shape == after[x].shape and not torch.equal(before[x], after[x]))


def _letter(path: str) -> str:
    """ "q" or "k" for q_norm, norm_added_k or query_layernorm; "" for other names."""
    last = path.rpartition(".")[2].lower()
    letters = read_name(last).letters
    return letters if letters in ("q", "k") and ("norm" in last or "ln" in last.split("_")) else ""
