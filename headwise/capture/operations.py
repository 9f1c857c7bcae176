"""How each operation changes scores before the softmax, and weights between the softmax and the values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.capture.trail import Trail, Trails
from headwise.masks.additive import FORBIDS


def step(name: str, trails: Trails, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Set the trails of what operation `name` made of the tracked tensors among its arguments."""
    name = name.strip("_")
    if name == "setitem":
        trail, part = trails.get(args[0], changed=True), trails.get(args[2])
        if trail is not None:
            trails.put(args[0], _assign(trail, args[1], args[2]))
        elif part is not None:
            trails.put(args[0], part.with_problem("the scores were assembled from parts"))
        return
    operands = (*args, *kwargs.values())
    if name in ("cat", "concat", "concatenate"):
        trail = _concatenate(trails, *operands[:2], out=out)
        if trail is not None:
            trails.put(out, trail)
        return
    if name in ARRANGE:  # what else they are given, as w.type_as(scores), says only which dtype or shape
        operands = tuple(x for x in operands if isinstance(x, Tensor))[:1]
    at = next((i for i, x in enumerate(operands) if trails.get(x) is not None), None)
    if at is None:
        return
    trail = trails.get(operands[at], changed=out is operands[at])
    assert trail is not None
    if name.startswith("new_") or name.endswith("_like"):  # takes only the shape, the dtype and the device
        return
    others = (trails.get(x) for x in operands[at + 1 :])
    if any(other is not None and other.product is trail.product for other in others):
        trail = trail.with_problem(
            f"the scores were combined with something computed from them in `{name}`, which a record cannot represent"
        )
    if trail.problem:
        if name == "softmax":
            trail = dataclasses.replace(trail, softmax=out)
        trails.put(out, None if _is_small(trail, out) else trail)
        return
    rule = (_AFTER if trail.softmax is not None else _BEFORE).get(name, _unknown)
    trails.put(out, rule(trail, _Step(name, args, dict(kwargs), operands, at, out)))


@dataclasses.dataclass(frozen=True)
class _Step:
    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    operands: tuple[Any, ...]
    at: int  # which operand is tracked
    out: Tensor

    def other(self) -> Any:
        return self.operands[1 - self.at] if len(self.operands) > 1 and self.at < 2 else None

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


Rule = Callable[[Trail, _Step], Trail | None]


def _unknown(trail: Trail, step: _Step) -> Trail | None:
    if _is_statistic(trail, step.operands[step.at], step.out):
        return None
    what = "weights" if trail.softmax is not None else "scores"
    return trail.with_problem(f"the {what} went through `{step.name}`, which a record cannot represent")


def _is_statistic(trail: Trail, before: Tensor, out: Tensor) -> bool:
    """Whether `out` is a statistic of scores, such as a row's maximum or a comparison, and not scores itself."""
    rows = tuple(before.shape[:-1])
    return _is_small(trail, out) or (before.shape[-1] > 1 and tuple(out.shape) in (rows, (*rows, 1)))


def _is_small(trail: Trail, out: Tensor) -> bool:
    return not out.is_floating_point() or out.ndim < 2 or out.numel() < trail.q.shape[-2] * trail.k.shape[-2]


def _unchanged(trail: Trail, step: _Step) -> Trail | None:
    """For what may change numbers (a limit, a slice, a head mask, nan_to_num) but usually does not: compare."""
    before, out = step.operands[step.at], step.out
    if tuple(out.shape) != trail.shape or out is before:
        return _unknown(trail, step)
    if _is_same_view(out, before):  # scores[..., :n] with all keys
        return trail
    same = out == before
    if bool(same.all()):
        return trail
    if trail.softmax is None:  # a limit that only prevents overflow changes nothing but the values of forbidden cells
        forbidden = (before <= FORBIDS) & (out <= FORBIDS)
        may_differ = forbidden & ~forbidden.all(-1, keepdim=True)
    else:  # torch's softmax of an empty row is NaN
        may_differ = before.isnan().all(-1, keepdim=True) & (out == 0)
        trail = dataclasses.replace(trail, softmax=out)
    return trail if bool((same | may_differ).all()) else _unknown(trail, step)


def _is_same_view(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.stride() == y.stride() and x.data_ptr() == y.data_ptr()


def _transposed(trail: Trail, step: _Step) -> Trail | None:
    """(k qᵀ)ᵀ"""
    turned = _is_same_view(step.out, step.operands[step.at].mT)
    if not turned or trail.terms or trail.fills or trail.sinks is not None:
        return _unknown(trail, step)
    return dataclasses.replace(trail, q=trail.k, k=trail.q)


def _scaled(trail: Trail, step: _Step) -> Trail | None:
    other = step.other()
    divided = step.name in _DIVIDE
    if divided and (step.at == 1 or "rounding_mode" in step.kwargs):
        return _unknown(trail, step)
    if isinstance(other, Tensor) and other.numel() != 1:
        return _scaled_by_rows(trail, step, 1 / other if divided else other)
    c = float(other)
    c = 1 / c if divided and c else c
    terms = tuple((x, coefficient * c) for x, coefficient in trail.terms)
    fills = tuple((x, value * c) for x, value in trail.fills)
    if not math.isfinite(c) or (terms and c <= 0) or not all(value <= FORBIDS for _, value in fills):
        return _unknown(trail, step)
    sinks = None if trail.sinks is None else trail.sinks * c
    return dataclasses.replace(trail, factor=trail.factor * c, terms=terms, fills=fills, sinks=sinks)


def _scaled_by_rows(trail: Trail, step: _Step, by: Tensor) -> Trail | None:
    """Scores times one number per row or head (a learned temperature): the same as queries times that number."""
    if trail.inner is not None or trail.sinks is not None or by.shape[-1] != 1 or by.ndim > len(trail.shape):
        return _unknown(trail, step)
    if not all(bool((value * by <= FORBIDS).all()) for _, value in trail.fills):
        return _unknown(trail, step)
    if trail.terms and not bool((by > 0).all()):  # a term may forbid
        return _unknown(trail, step)
    terms = tuple((x * by, coefficient) for x, coefficient in trail.terms)
    return dataclasses.replace(trail, q=trail.q * by, terms=terms)


def _added(trail: Trail, step: _Step) -> Trail | None:
    other, sign = step.other(), 1.0
    if step.name in _SUBTRACT:
        if step.at == 1:
            return _unknown(trail, step)
        sign = -1.0
    sign *= float(step.kwargs.get("alpha", 1))
    if tuple(step.out.shape) != trail.shape:
        return _unknown(trail, step)
    if not isinstance(other, Tensor):
        other = torch.tensor(float(other), dtype=trail.dtype, device=step.out.device)
    if trail.sinks is not None:
        # One number per row, for all its scores and the sink, does not change the softmax.
        return trail if other.ndim and other.shape[-1] == 1 else _unknown(trail, step)
    return dataclasses.replace(trail, terms=(*trail.terms, (other, sign)))


def _capped(trail: Trail, step: _Step) -> Trail | None:
    if trail.terms or trail.fills or trail.inner is not None or trail.sinks is not None:
        return _unknown(trail, step)
    return dataclasses.replace(trail, inner=trail.factor, factor=1.0)


def _filled(trail: Trail, step: _Step) -> Trail | None:
    forbidden, value = step.argument(1, "mask"), step.argument(2, "value")
    return _fill(trail, forbidden, value) if step.at == 0 else _unknown(trail, step)


def _chosen(trail: Trail, step: _Step) -> Trail | None:
    """torch.where(condition, scores, value), or the other way round; scores.where(condition, value)."""
    condition, other = step.argument(0, "condition"), step.argument(2, "other")
    if step.at == 0:
        return _fill(trail, ~step.argument(1, "condition"), other)
    if step.at == 1:
        return _fill(trail, ~condition, other)
    return _fill(trail, condition, step.argument(1, "input")) if step.at == 2 else _unknown(trail, step)


def _assign(trail: Trail, where: Any, value: Any) -> Trail:
    """scores[mask] = -inf, in place."""
    if trail.softmax is None and isinstance(where, Tensor) and where.dtype == torch.bool:
        where = where[(...,) + (None,) * (len(trail.shape) - where.ndim)]
        return _fill(trail, where, value)
    return trail.with_problem("the scores were assigned to in place")


def _fill(trail: Trail, forbidden: Any, value: Any) -> Trail:
    if not isinstance(forbidden, Tensor) or forbidden.dtype not in (torch.bool, torch.uint8):
        return trail.with_problem("the scores were filled under a mask that is not a bool tensor")
    if isinstance(value, Tensor) and value.numel() > 1 and bool((value == value.flatten()[0]).all()):
        value = value.flatten()[0]
    if isinstance(value, Tensor) and value.numel() != 1:
        return trail.with_problem("the scores were replaced by several numbers under a mask")
    if trail.sinks is not None or not float(value) <= FORBIDS:
        return trail.with_problem(f"the scores were filled with {float(value):g}, which forbids nothing")
    return dataclasses.replace(trail, fills=(*trail.fills, (forbidden.bool(), float(value))))


def _concatenate(trails: Trails, parts: Any, dim: Any = 0, *, out: Tensor) -> Trail | None:
    """Scores with a column of sinks beside them."""
    if not isinstance(parts, (list, tuple)) or len(parts) != 2:
        return None
    first = 0 if trails.get(parts[0]) is not None else 1
    trail, sinks = trails.get(parts[first]), parts[1 - first]
    if trail is None:
        return None
    fits = dim in (-1, out.ndim - 1) and sinks.shape[-1] == 1 and trail.softmax is None and trail.sinks is None
    if not fits:
        return trail.with_problem("the scores were concatenated with something that is no column of sinks")
    return dataclasses.replace(trail, sinks=sinks, sinks_first=first == 1)


def _reshaped(trail: Trail, step: _Step) -> Trail | None:
    """Another arrangement of batch and heads; the last two dimensions stay."""
    shape, out = trail.shape, tuple(step.out.shape)
    if out == shape:
        return trail
    if len(out) < 2 or out[-2:] != shape[-2:] or math.prod(out) != math.prod(shape) or trail.sinks is not None:
        return _unknown(trail, step)
    lead = out[:-2]

    def follow(x: Tensor) -> Tensor:
        if all(size == 1 for size in x.shape[:-2]):
            return x[(0,) * (x.ndim - 2)]
        return x.expand(*trail.lead, *x.shape[-2:]).reshape(*lead, *x.shape[-2:])

    terms, fills = (tuple((follow(x), c) for x, c in pairs) for pairs in (trail.terms, trail.fills))
    softmax = None if trail.softmax is None else trail.softmax.reshape(out)
    q, k = follow(trail.q), follow(trail.k)
    return dataclasses.replace(trail, q=q, k=k, lead=lead, terms=terms, fills=fills, softmax=softmax)


def _normalised(trail: Trail, step: _Step) -> Trail | None:
    dim, trail = step.argument(1, "dim"), dataclasses.replace(trail, softmax=step.out)
    if dim in (-1, step.out.ndim - 1):
        return trail
    return trail.with_problem(f"the softmax was taken over dimension {dim}, not over the keys")


def _dropped(trail: Trail, step: _Step) -> Trail | None:
    training = step.argument(2, "training", step.argument(2, "train", True))
    p = float(step.argument(1, "p", 0.5)) if training else 0.0
    return dataclasses.replace(trail, dropout=1 - (1 - trail.dropout) * (1 - p))


def _cut(trail: Trail, step: _Step) -> Trail | None:
    """weights[..., :-1] leaves out the column of sinks; or a slice with everything."""
    weights = step.operands[step.at]
    of_keys = weights[..., 1:] if trail.sinks_first else weights[..., :-1]
    if trail.sinks is None or trail.sinks_cut or not _is_same_view(step.out, of_keys):
        return _unchanged(trail, step)
    return dataclasses.replace(trail, sinks_cut=True, softmax=step.out)


# Names are without the underscores of `add_` and `__add__`. First those that keep the numbers, and perhaps their shape.
_DTYPES = ("to", "float", "half", "bfloat16", "double", "type", "type_as")
_MEMORY = ("contiguous", "clone", "detach", "cpu", "cuda", "data")
_SHAPES = ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "expand", "view_as", "reshape_as")
ARRANGE = (*_DTYPES, *_MEMORY, *_SHAPES)
_LIMIT = ("clamp", "clamp_min", "clamp_max", "clip", "max", "maximum", "min", "nan_to_num")
_MULTIPLY = ("mul", "rmul", "imul", "multiply")
_DIVIDE = ("div", "true_divide", "truediv", "itruediv", "divide")
_SUBTRACT = ("sub", "isub", "subtract")

_BEFORE: dict[str, Rule] = {
    **dict.fromkeys(ARRANGE, _reshaped),
    **dict.fromkeys((*_LIMIT, "getitem"), _unchanged),
    **dict.fromkeys((*_MULTIPLY, *_DIVIDE), _scaled),
    **dict.fromkeys(("add", "radd", "iadd", *_SUBTRACT), _added),
    "masked_fill": _filled,
    "where": _chosen,
    "tanh": _capped,
    **dict.fromkeys(("softmax", "safe_softmax"), _normalised),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "permute", "movedim", "mT", "T"), _transposed),
}
_AFTER: dict[str, Rule] = {
    **dict.fromkeys(ARRANGE, _reshaped),
    "dropout": _dropped,
    **dict.fromkeys((*_MULTIPLY, "nan_to_num", "masked_fill", "where"), _unchanged),
    "getitem": _cut,
}
