"""Turns a trail (trail.py: how scores were computed from q kᵀ) into an attention call that gives the same weights."""

from __future__ import annotations

import functools
import operator

import torch
from torch import Tensor

from headwise.call import AttentionCall, make_call
from headwise.capture import operations
from headwise.capture.layout import Layout, smallest
from headwise.capture.masks import Found, Recognised
from headwise.capture.trail import Trail
from headwise.errors import RecordError
from headwise.masks.additive import FORBIDS


def build_call(found: Trail, values: Tensor | None, layout: Layout, recognised: Recognised) -> AttentionCall:
    """Make the attention call that computes its scores as a trail describes (a trail: how scores came from q kᵀ)."""
    assert found.q is not None
    assert found.k is not None
    check_values(found.q)
    # Autocast has lowered the operands of the product; the record gets the same.
    q, k = (layout.fold(x).to(found.dtype) for x in (found.q, found.k))
    v = k[..., :1] if values is None else layout.fold(values).to(found.dtype)
    shape = (*q.shape[:3], k.shape[2])
    parts = [_filled(found, layout, shape, recognised)] if found.fills else []
    for term, coefficient in found.terms:
        # Multiplied first: the factor may decide whether a value forbids.
        term = layout.fold_mask(term if coefficient == 1 else term * coefficient)
        parts.append(recognised.additive(term, shape, found.dtype))
    allowed = [mask for mask, _ in parts if mask is not None]
    biases = [bias for _, bias in parts if bias is not None]
    mask = functools.reduce(operator.and_, allowed) if allowed else None
    bias = functools.reduce(operator.add, biases) if biases else None
    softcap = None if found.inner is None else found.factor
    scale = found.factor if found.inner is None else found.inner * found.factor
    sinks = None if found.sinks is None else layout.fold(found.sinks)
    if sinks is not None and not bool((sinks == sinks[:1, :, :1]).all()):
        # Each query has its own sink: the scores minus that sink, with a sink of 0, have the same softmax.
        rows = -sinks.float()
        bias, sinks = rows if bias is None else bias + rows, torch.zeros_like(sinks)
    sinks = None if sinks is None else sinks[0, :, 0, 0]
    with torch.autocast(q.device.type, enabled=False):
        return make_call(
            q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=found.dropout
        )


def kept_call(
    found: Trail, values: Tensor | None, layout: Layout, weights: Tensor, recognised: Recognised
) -> AttentionCall:
    """Make an attention call whose bias is the difference between the model's scores and scale · q kᵀ.

    If the weights were changed after the softmax, the logarithms of the changed weights count as the model's scores.
    """
    scores = None if found.scores is None or found.used else layout.fold(found.scores).float()
    if scores is None:
        weights = layout.fold(weights)
        if not operations.is_softmax(weights):
            raise RecordError(
                f"its weights were changed by `{found.used}` after the softmax, and do not sum to 1: no softmax "
                "gives them"
            )
        scores = weights.float().log()
    if found.q is None or found.k is None:
        q, k = scores.new_zeros(*scores.shape[:3], 1), scores.new_zeros(*scores.shape[:2], scores.shape[3], 1)
        scale = 1.0
    else:
        check_values(found.q)
        q, k = (layout.fold(x).to(found.dtype) for x in (found.q, found.k))
        scale = found.factor if found.inner is None else 0.0
    if bool((scores.isnan() | (scores == torch.inf)).any()):
        raise RecordError("its scores are not all numbers")
    top = scores.amax(-1, keepdim=True)
    forbidden = (scores - top <= FORBIDS) | (scores == -torch.inf)
    rest = scores - scale * (q.float() @ k.float().mT)
    if found.used:
        count = (~forbidden).sum(-1, keepdim=True).clamp(min=1)
        rest = rest - rest.masked_fill(forbidden, 0.0).sum(-1, keepdim=True) / count
    rest = rest.masked_fill(forbidden, 0.0)
    size = scores.masked_fill(forbidden, 0.0).abs().amax(-1, keepdim=True)
    nothing = 4 * torch.finfo(found.dtype).eps * (1 + size) if found.dtype == torch.float32 else 0.0
    rest = rest.masked_fill((rest.abs() <= nothing).all(-1, keepdim=True), 0.0)
    rest = smallest(rest, (0, 1, 3))
    shape = (*q.shape[:3], k.shape[2])
    mask, _ = recognised.mask(~forbidden, shape) if bool(forbidden.any()) else (None, None)
    v = k[..., :1] if values is None else layout.fold(values).to(k.dtype)
    bias = rest if bool(rest.any()) else None
    with torch.autocast(q.device.type, enabled=False):
        return make_call(q, k, v, mask=mask, bias=bias, scale=scale, dropout=found.dropout)


def _filled(found: Trail, layout: Layout, shape: tuple[int, ...], recognised: Recognised) -> Found:
    """Return the mask and the bias that have the same effect as all fills (`masked_fill` and the like) of a trail."""
    forbidden = functools.reduce(operator.or_, (layout.fold_mask(x) for x, _ in found.fills))
    value, *others = {value for _, value in found.fills}
    if others and bool(forbidden.all(-1).any()):
        raise RecordError("its scores were filled with several numbers, in rows that are forbidden completely")
    return recognised.filled(forbidden, value, shape)


def check_values(q: Tensor) -> None:
    """Raise RecordError if tensors hold no numbers, because they are on the device "meta" or are fake tensors."""
    if q.is_meta or type(q).__name__ == "FakeTensor":
        raise RecordError(f"its tensors hold no numbers: they are {'on meta' if q.is_meta else 'FakeTensors'}")
