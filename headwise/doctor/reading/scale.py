"""The factor of the scores: measured from two forwards with other inputs, whatever was biased or masked."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site


def measure(site: Site, twin: Site) -> float | None:
    """The factor in scores = factor · q kᵀ + a part that does not depend on the inputs; None if there is none.

    A number that is added to a whole row, such as the subtracted maximum, does not change the softmax and is ignored.
    """
    factor = behind_the_product(site, twin)
    return None if factor is None else factor * _scaled_before(site, "q") * _scaled_before(site, "k")


def behind_the_product(site: Site, twin: Site) -> float | None:
    """The same, counting only factors applied to the product itself, not to queries and keys before it."""
    changed = (twin.scores - site.scores, twin.products - site.products)
    valid = open_cells(site, twin) & torch.isfinite(changed[0]) & torch.isfinite(changed[1])
    scores, products = (off_its_mean(x, valid)[valid] for x in changed)
    if scores.numel() < 4 or not bool(products.abs().max() > 0):
        return None
    factor = float((scores @ products) / (products @ products))
    return None if float((scores - factor * products).abs().max()) > 1e-3 * float(scores.abs().max()) else factor


def open_cells(site: Site, twin: Site) -> Tensor:
    """[B, H, Q, K]: the cells that are masked in neither forward."""
    return (site.scores > FORBIDDEN) & (twin.scores > FORBIDDEN)


def off_its_mean(x: Tensor, valid: Tensor) -> Tensor:
    mean = x.masked_fill(~valid, 0.0).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    return x - mean


def _scaled_before(site: Site, name: Literal["q", "k"]) -> float:
    """The factor of queries or keys between their projection (or a norm after it) and the product."""
    raw = site.raw(name)
    if raw is not None:
        entered = (site.q if name == "q" else site.k).double()
        ratio = entered.norm(dim=-1) / raw.norm(dim=-1)
        first = float(ratio.flatten()[0])
        if bool(((ratio - first).abs() < 1e-3 * abs(first)).all()):
            return first
    return site.operand(name).factor
