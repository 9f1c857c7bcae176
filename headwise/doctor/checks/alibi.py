"""ALiBi: a bias that falls linearly with the distance, with one slope for each head.

Slopes are 2^(-8 i / H) if H is a power of two. Otherwise Press et al. take the slopes of the next lower power of two,
and add every second slope of the next higher one. Code that forgets the second case has slopes with which no
checkpoint was trained.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.scale import behind_the_product, open_cells
from headwise.doctor.reading.site import Site
from headwise.nn.positions import alibi

FINDINGS = ("alibi-slopes",)


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    known = 0
    for site, twin in zip(anatomy.sites, anatomy.again or (), strict=False):
        slopes = _slopes(site, twin)
        if slopes is None:
            continue
        known += 1
        falls = bool((slopes > 0).all())
        rises = _rise_ahead(site, twin) if falls and not _hidden_from_outside(patient) else None
        if rises is not None and bool((rises > 0).all()):
            yield Finding(
                "alibi-slopes",
                "bug",
                f"the bias falls with the distance of earlier keys, and rises with that of later ones, by up to "
                f"{float(rises.max()):.4g} for each position, although later keys are attended to",
                "take the distance without its sign: -slope * (i - j).abs()",
                site.softmax.where,
            )
            return
        expected = torch.tensor(alibi.slopes(len(slopes)), dtype=torch.float64)
        if torch.allclose(slopes, expected, rtol=1e-3):
            continue
        same = torch.allclose(slopes.sort().values, expected.sort().values, rtol=1e-3)
        rising = bool((slopes < 0).any())
        falling = bool((slopes[:-1] > slopes[1:]).all())
        severity: Severity = "bug" if rising or same or falling else "risk"  # else learned, or of another scheme
        listed = ", ".join(f"{x:.4g}" for x in slopes.tolist()[:6])
        wanted = ", ".join(f"{x:.4g}" for x in expected.tolist()[:6])
        yield Finding(
            "alibi-slopes",
            severity,
            f"the bias falls with the distance by {listed} in the {len(slopes)} heads; expected {wanted}"
            + ("; a negative slope favours distant keys" if rising else ""),
            "take the slopes of the next lower power of two, then every second slope of the next higher one",
            site.softmax.where,
        )
    if not known:
        raise NotApplicable("it has no bias that falls linearly with the distance")


def _slopes(site: Site, twin: Site) -> Tensor | None:
    """[H]: how much the bias falls with each step of distance; None if the bias is not linear in the distance."""
    if site.grid is None or twin.grid is None or site.scores.shape != twin.scores.shape:
        return None
    heads, queries, keys = site.scores.shape[1:]
    factor = behind_the_product(site, twin) if heads > 1 and queries == keys else None
    if factor is None:
        return None
    found = _linear(_bias(site, twin, factor), torch.ones(queries, keys).tril().bool())
    return None if found is None else -found


def _bias(site: Site, twin: Site, factor: float) -> Tensor:
    """[B, H, Q, K]: what is added to the scores, less what each query gets itself: that does not change the softmax."""
    bias = torch.where(open_cells(site, twin), site.scores - factor * site.products, torch.nan)
    return bias - bias.diagonal(dim1=-2, dim2=-1)[..., None]


def _linear(bias: Tensor, where: Tensor) -> Tensor | None:
    """[H]: by how much the bias rises with each step of distance in these cells; None if it is not linear there."""
    n = bias.shape[-1]
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs().double()
    found = []
    for head in range(bias.shape[1]):
        cells = bias[:, head].isfinite() & where
        b, d = bias[:, head][cells], distance.expand(cells.shape)[cells]
        if len(d.unique()) < 4 or float(b.abs().max()) < 1e-6:  # any numbers at 0 and 1 lie on a line
            return None
        slope = (b @ d) / (d @ d)
        if float((b - slope * d).abs().max()) > 1e-3 * float(b.abs().max()):
            return None
        found.append(slope)
    return torch.stack(found)


def _rise_ahead(site: Site, twin: Site) -> Tensor | None:
    """[H]: the same for keys after the query; None if they are hidden, or it is not linear."""
    factor = behind_the_product(site, twin)
    queries, keys = site.scores.shape[-2:]
    return None if factor is None else _linear(_bias(site, twin, factor), torch.ones(queries, keys).triu().bool())


def _hidden_from_outside(patient: Patient) -> bool:
    """Whether a mask of the caller may hide later keys, as that of a decoder does."""
    interface = patient.interface
    causal = interface.causal_claim or any(role == "causal" for role in interface.roles.values())
    decodes = any(getattr(part, "is_decoder", False) is True for part in patient.module.modules())
    return bool(causal) or decodes or any(mask.what == "cells" for mask in interface.masks)
