"""Norms over the wrong axis: over the positions of a sequence, or over the heads.

The statistics of a norm belong to one token of one head (or of all heads together). Taken over the sequence, they let
every token influence the queries and keys of every other before any mask acts; taken over the heads, each feature
competes with those of other heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import moved
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import Norm
from headwise.doctor.reading.site import Site

FINDINGS = ("norm-axis",)

_WORDS = {"q": "queries", "k": "keys", "v": "values"}
_FIX = "normalise each token alone, over its features (dim=-1)"


def check(patient: Patient) -> Iterator[Finding]:
    sites = [site for site in patient.see().sites if site.grid is not None and site.contraction is not None]
    if not sites:
        raise NotApplicable("queries, keys and values are not known")
    site = sites[0]  # those of later layers depend on all tokens anyway
    yield from _over_positions(patient, site)
    yield from _over_heads(site)


def _over_positions(patient: Patient, site: Site) -> Iterator[Finding]:
    norm = _norm(site)
    if norm is None or (patient.interface.length is not None and patient.interface.length < 3):
        return
    if any(isinstance(x, (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)) for x in patient.module.modules()):
        return  # these are over positions by design

    def edit(inputs: Inputs) -> Inputs:
        return moved(inputs, 1, 2, queries=True)

    others = [x for x in look(patient, edit=edit).sites if x.grid is not None and x.contraction is not None]
    if not others or others[0].q.shape != site.q.shape:
        return
    for name in "qkv":
        before, after = _of(site, name), _of(others[0], name)
        change = (before - after).abs().amax((1, 3))[1] / before.abs().max()  # [L], in the example that changed
        rest = [i for i in range(len(change)) if i != 2]
        if float(change[rest].max()) > 1e-4:
            yield Finding(
                "norm-axis",
                "bug",
                f"after a change of position 2 alone, the {_WORDS[name]} of the other positions change by "
                f"{float(change[rest].max()):.2g} of their size: {norm.name} takes its statistics over the positions",
                _FIX,
                norm.where,
                numbers={"change": float(change[rest].max())},
            )
            return


def _norm(site: Site) -> Norm | None:
    """The last statistic over several positions before the scores. A mean alone may be a pooling: it counts if
    a root is taken too, as in a norm that is written out.
    """
    before = [x for x in site.trace.norms if x.order < site.softmax.order]
    certain = [x for x in before if x.name != "mean"]
    if certain:
        return certain[-1]
    return before[-1] if before and site.trace.roots else None


def _over_heads(site: Site) -> Iterator[Finding]:
    heads, width = site.q.shape[1], site.q.shape[-1]
    if heads < 2 or width < 2:
        return
    for name in "qk":
        x, raw = _of(site, name), site.raw(name)
        if raw is None or x.shape != raw.shape or _steady(raw, 1):
            continue
        if _steady(x, 1) and not _steady(x, -1):
            yield Finding(
                "norm-axis",
                "bug",
                f"for every feature the {_WORDS[name]} of the {heads} heads together have the same size, and those "
                "of one head do not: they are normalised over the heads",
                _FIX,
                site.product.where,
            )
            return


def _steady(x: Tensor, dim: int) -> bool:
    size = x.norm(dim=dim)
    return bool(size.std() < 2e-3 * size.mean())


def _of(site: Site, name: str) -> Tensor:
    return (site.q if name == "q" else site.k if name == "k" else site.v).to(torch.float64)
