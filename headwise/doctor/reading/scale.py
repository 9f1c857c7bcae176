"""The factor of the scores: measured from two forwards with other inputs, whatever was biased or masked.

It is read from the rows of the softmax, so that it is known where heads are split wrongly, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import FORBIDDEN, Operand, Trace
from headwise.doctor.reading.marks import MIXED
from headwise.doctor.reading.site import Site, rows_of, values_at


def measure(site: Site, twin: Site) -> float | None:
    """Return the factor in scores = factor · q kᵀ + a part that the inputs do not change; None if there is none.

    A number that is added to a whole row, such as the subtracted maximum, does not change the softmax and is ignored.
    """
    factor = behind_the_product(site, twin)
    if factor is None:
        return None
    left, right = site.product.operands
    return factor * scaled_before(site.trace, left, -1) * scaled_before(site.trace, right, -2)


def behind_the_product(site: Site, twin: Site) -> float | None:
    """The same, counting only factors applied to the product itself, not to queries and keys before it."""
    here, there = _rows(site), _rows(twin)
    if here is None or there is None or here[0].shape != there[0].shape:
        return None
    open_ = torch.stack([(x > FORBIDDEN) & x.isfinite() & y.isfinite() for x, y in (here, there)]).all(0)
    scores, products = (off_its_mean(b - a, open_)[open_] for a, b in zip(here, there, strict=True))
    return proportion(products, scores)


def proportion(x: Tensor, y: Tensor) -> float | None:
    """Return the number f in y = f · x; None if there is none, or one of them is 0 or too short to tell."""
    if x.numel() < 4 or not min(float(x.abs().max()), float(y.abs().max())) > 0:
        return None
    factor = float((x @ y) / (x @ x))
    return None if float((y - factor * x).abs().max()) > 1e-3 * float(y.abs().max()) else factor


def off_its_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Take the mean of the valid cells off each row."""
    mean = x.masked_fill(~valid, 0.0).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    return x - mean


def added(site: Site, twin: Site) -> Tensor | None:
    """[B, H, Q, K]: what is added to the products of queries and keys; NaN where it is masked, None if not known."""
    if site.grid is None or twin.grid is None or site.scores.shape != twin.scores.shape:
        return None
    factor = behind_the_product(site, twin)
    if factor is None:
        return None
    open_ = (site.scores > FORBIDDEN) & (twin.scores > FORBIDDEN)
    return torch.where(open_, site.scores - factor * site.products, torch.nan)


def scaled_before(run: Trace, operand: Operand, dim: int) -> float:
    """Return the factor of queries or keys between their projection (or a norm after it) and the product."""
    value, source = (x if dim == -1 else x.transpose(-1, -2) for x in (operand.value, operand.source))
    raw = values_at(run, source)
    if raw is not None:
        ratio = value.double().norm(dim=-1) / raw.norm(dim=-1)
        first = float(ratio.flatten()[0])
        if bool(((ratio - first).abs() < 1e-3 * abs(first)).all()):
            return first
    return operand.factor


def _rows(site: Site) -> tuple[Tensor, Tensor] | None:
    """[rows, J]: the scores of each softmax, and the products of a query and a key that they come from, -inf for
    others; None if these are not products of the features of one query and one key.
    """
    left, right = site.product.operands
    mixed = (marks.one(left.token, -1) == MIXED).any() | (marks.one(right.token, -2) == MIXED).any()
    if site.grid is None and bool(mixed):
        return None
    inside = marks.seed_of(site.sources) == site.product.number
    products = (left.value.double() @ right.value.double()).flatten()
    found = products[marks.element_of(site.sources).masked_fill(~inside, 0)].masked_fill(~inside, -torch.inf)
    return rows_of(site.softmax.scores, site.softmax.dims).double(), found
