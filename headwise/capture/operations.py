"""How each torch operation changes scores before the softmax, and weights between the softmax and the values.

A trail (trail.py) describes how a tensor of scores or weights was computed. A rule is a function that returns the
trail after an operation. An operation with a rule is described exactly. An operation without a rule that keeps
every number in its place makes the trail `loose` (scores) or `used` (weights): the numbers themselves are kept. Any
other operation is named as the trail's `problem`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.capture.arrangement import axes, permuted, reshaped, same_but_ones
from headwise.capture.ledger import Softmax
from headwise.capture.operation import (
    ADD,
    ARRANGE,
    CUT,
    DIVIDE,
    ELEMENTWISE,
    JOIN,
    LIMIT,
    MULTIPLY,
    REDUCE,
    SOFTMAXES,
    SPLIT,
    STATISTICS,
    SUBTRACT,
    TURN,
    Rule,
    Step,
    in_place,
    unknown,
    what,
)
from headwise.capture.sites import is_same_view
from headwise.capture.trail import Trail, Trails, at_home, is_learned
from headwise.masks.additive import FORBIDS, UNIFORM


def step(name: str, trails: Trails, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Give the result `out` of operation `name` a trail (how it came from q kᵀ), if an argument has a trail."""
    name = name.strip("_")
    if name == "setitem":
        return _written(trails, *args)
    if name in JOIN:
        return _joined(trails, name, args, kwargs, out)
    operands = (*args, *kwargs.values())
    if name in ARRANGE:  # their other arguments, as in w.type_as(scores), give only a dtype or shape
        operands = tuple(x for x in operands if isinstance(x, Tensor))[:1]
    at = next((i for i, x in enumerate(operands) if trails.get(x) is not None), None)
    if at is None:
        return None
    x = operands[at]
    trail = trails.get(x, changed=out is x)
    assert trail is not None
    if name in REDUCE and _keeps_keys(trail, x, out):
        reduced = trail.with_problem(f"the weights of several heads or examples were put together by `{name}`")
        return trails.put(out, reduced.but(intact=trail.intact or trail))
    if name.startswith("new_") or name.endswith("_like") or name in STATISTICS:
        return None  # takes only the shape, the dtype and the device; or its results are not scores
    if not isinstance(out, Tensor):
        cut = name in SPLIT or (name in ("topk", "sort") and trail.q is not None)  # without q and k they are a router's
        for part in out if cut else ():
            if isinstance(part, Tensor):
                trails.put(part, _changed(trail, unknown(trail, Step(name, args, dict(kwargs), operands, at, part)), x))
        return None
    if not out.is_floating_point() or out.ndim == 0 or (name not in CUT and _is_row_statistic(trail, x, out)):
        return None
    found = Step(name, args, dict(kwargs), operands, at, out)
    if "softmax" in name:
        trails.put(out, _normalised(trail, found) if trail.of is None else bare(name, args, kwargs, out))
        return None
    others = [other for other in map(trails.get, operands[at + 1 :]) if other is not None]
    if any(other.product is trail.product for other in others):
        alike = all(other.shape == trail.shape and other.order == trail.order for other in others)
        after = (
            in_place(trail, found)
            if alike and name in ELEMENTWISE
            else trail.with_problem(
                f"the {what(trail)} were combined with something computed from them in `{name}`, which a record "
                "cannot represent"
            )
        )
        trails.put(out, _changed(trail, after, out))
        return None
    if trail.problem:
        trails.put(out, trail)
        return None
    if trail.is_bare_exp and name not in (*DIVIDE, *ARRANGE, *TURN):
        return trails.put(out, None)
    if name in CUT and trail.q is None and not same_but_ones(x, out):
        return None  # some columns of a softmax without queries, such as the experts that a router chose
    rule = (_BEFORE if trail.of is None else _AFTER).get(name, in_place)
    result = _changed(trail, rule(trail, found), out)
    if result is not None and result.intact is not None:
        softmaxes = [
            other for other in others if other.of is not None and other.q is not None and not is_learned(other)
        ]
        parts = [each for other in softmaxes for each in (other.intact or other, *other.also)]
        result = result.but(also=(*result.also, *parts))
    trails.put(out, result)
    return None


def _changed(before: Trail, after: Trail | None, out: Any) -> Trail | None:
    """Return `after`, the trail after an operation that changed weights, with the trail from before the first change.

    If an operation wrote into the weights themselves, the unchanged weights are lost, and so is their trail.
    """
    if after is None or before.of is None or before.q is None or before.intact is not None or before.softmax is out:
        return after
    if before.exps:  # there is no softmax yet
        return after
    return after.but(intact=before) if (after.problem or after.used) and not (before.problem or before.used) else after


def bare(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Trail | None:
    """Begin a trail (history) for a softmax or exp of a tensor that comes from no product of queries and keys."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if out.ndim < 1 or not out.is_floating_point() or not out.shape[-1]:
        return None
    last = out.ndim - 1
    at = last if not isinstance(dim, int) else dim % out.ndim
    order = None if at == last else tuple(i if i < at else last if i == at else i - 1 for i in range(out.ndim))
    rest = [size for i, size in enumerate(out.shape) if i != at] or [1]
    trail = Trail(None, None, tuple(rest[:-1]), out.dtype, rest[-1], out.shape[at], order=order, of=Softmax())
    trail = trail.but(logs=name.endswith("log_softmax"), view=(out.shape[0],) if out.ndim == 1 else None)
    if name.strip("_") == "exp":
        return trail.but(exps=True)
    return trail if name.strip("_") in SOFTMAXES else trail.with_problem(f"its weights come from `{name}`")


def _keeps_keys(trail: Trail, before: Tensor, out: Any) -> bool:
    """Return whether a reduction of weights (a sum, a maximum) left a number for each query and key."""
    if trail.of is None or trail.q is None or not isinstance(out, Tensor) or not out.is_floating_point():
        return False
    if out.ndim < 2 or out.numel() >= before.numel() or _is_row_statistic(trail, before, out):
        return False
    return tuple(out.shape[-2:]) == tuple(before.shape[-2:]) == (trail.rows, trail.keys)


def _is_row_statistic(trail: Trail, before: Tensor, out: Tensor) -> bool:
    """Return whether `out` is one number for each row of `before`, such as its norm, and no longer scores."""
    rows = tuple(before.shape[:-1])
    return before.ndim > 1 and before.shape[-1] > 1 and tuple(out.shape) in (rows, (*rows, 1))


def _unchanged(trail: Trail, step: Step) -> Trail:
    """Return the trail (history) after an operation that usually changes nothing (a limit, nan_to_num).

    The numbers before and after the operation are compared.
    """
    before, out = step.tracked, step.out
    if tuple(out.shape) != trail.shape or out is before:
        return in_place(trail, step)
    if is_same_view(out, before):  # scores[..., :n] with all keys
        return trail
    same = out == before
    if bool(same.all()):
        return trail
    if trail.of is None:  # a limit that only prevents overflow changes nothing but the values of forbidden cells
        forbidden = (before <= FORBIDS) & (out <= FORBIDS)
        may_differ = forbidden & ~forbidden.all(-1, keepdim=True)
    else:  # torch's softmax of an empty row is NaN
        may_differ = before.isnan().all(-1, keepdim=True) & (out == 0)
    return trail if bool((same | may_differ).all()) else in_place(trail, step)


# Rules for scores.


def _scaled(trail: Trail, step: Step) -> Trail:
    other = step.other()
    divided = step.name in DIVIDE
    if divided and (step.at == 1 or "rounding_mode" in step.kwargs):
        return in_place(trail, step)
    # A learned number stays a tensor where an edit needs its gradient.
    if isinstance(other, Tensor) and (other.numel() != 1 or (other.requires_grad and torch.is_grad_enabled())):
        other = other if other.ndim else other[None]
        return _scaled_by_rows(trail, step, 1 / other if divided else other)
    c = float(other)
    c = 1 / c if divided and c else c
    terms = tuple((x, coefficient * c) for x, coefficient in trail.terms)
    fills = tuple((x, value * c) for x, value in trail.fills)
    if not math.isfinite(c) or (terms and c <= 0) or not all(value <= FORBIDS for _, value in fills):
        return in_place(trail, step)
    sinks = None if trail.sinks is None else trail.sinks * c
    return trail.but(factor=trail.factor * c, terms=terms, fills=fills, sinks=sinks)


def _scaled_by_rows(trail: Trail, step: Step, by: Tensor) -> Trail:
    """Return the trail (history) of scores times a number per row or head (a learned temperature).

    It is described as a multiplication of the queries by this number.
    """
    if trail.view is not None or by.ndim > len(trail.shape):
        return in_place(trail, step)
    by = trail.canonical(by)
    if trail.q is None or trail.inner is not None or trail.sinks is not None or by.shape[-1] != 1 or trail.loose:
        return in_place(trail, step)
    if not all(bool((value * by <= FORBIDS).all()) for _, value in trail.fills):
        return in_place(trail, step)
    if trail.terms and not bool((by > 0).all()):  # a term may forbid
        return in_place(trail, step)
    terms = tuple((x * by, coefficient) for x, coefficient in trail.terms)
    return trail.but(q=trail.q * by, terms=terms)


def _added(trail: Trail, step: Step) -> Trail:
    other, sign = step.other(), 1.0
    if step.name in SUBTRACT:
        if step.at == 1:
            return in_place(trail, step)
        sign = -1.0
    sign *= float(step.kwargs.get("alpha", 1))
    if tuple(step.out.shape) != trail.shape:
        return unknown(trail, step)
    if not isinstance(other, Tensor):
        other = torch.tensor(float(other), dtype=trail.dtype, device=step.out.device)
    elif not other.is_floating_point():
        other = other.to(trail.dtype)  # a mask of bools adds 1 where it is True
    if trail.sinks is not None:
        # One number per row, for all its scores and the sink, does not change the softmax.
        return trail if other.ndim and other.shape[-1] == 1 else unknown(trail, step)
    if trail.view is not None:
        return in_place(trail, step)
    other = trail.canonical(other)
    # What is the same for all keys cancels in the softmax, unless the scores become so large that they are rounded.
    cancels = bool(other.ndim) and other.shape[-1] == 1 and trail.keys > 1
    if cancels and (_are_small(other) or _are_small(trail.canonical(step.out).amax(-1))):
        return trail.but(shifted=True)
    if (trail.terms or trail.fills) and _overflows(trail, other * sign):
        return in_place(trail, step)
    return trail.but(terms=(*trail.terms, (other, sign)))


def _are_small(x: Tensor) -> bool:
    return bool((x.abs() < -FORBIDS).all())


def _overflows(trail: Trail, other: Tensor) -> bool:
    """Return whether a second mask is added to masked scores: finfo.min + finfo.min may be -inf, -inf + inf NaN."""
    low = max(UNIFORM, torch.finfo(trail.dtype).min / 2)
    before = [value <= low for _, value in trail.fills]
    before += [bool((term * factor <= low).any()) for term, factor in trail.terms]
    return any(before) and bool((other <= low).any())


def _capped(trail: Trail, step: Step) -> Trail:
    changed = trail.terms or trail.fills or trail.shifted or trail.loose
    if changed or trail.inner is not None or trail.sinks is not None:
        return in_place(trail, step)
    return trail.but(inner=trail.factor, factor=1.0)


def _filled(trail: Trail, step: Step) -> Trail:
    if step.at != 0:
        return in_place(trail, step)
    return _fill(trail, step, step.argument(1, "mask"), step.argument(2, "value"))


def _chosen(trail: Trail, step: Step) -> Trail:
    """Return the trail (history) of torch.where(condition, scores, value), or (condition, value, scores).

    `scores.where(condition, value)` is the same as the first.
    """
    condition, other = step.argument(0, "condition"), step.argument(2, "other")
    if step.at == 0:
        return _fill(trail, step, ~step.argument(1, "condition"), other)
    if step.at == 1:
        return _fill(trail, step, ~condition, other)
    return _fill(trail, step, condition, step.argument(1, "input")) if step.at == 2 else in_place(trail, step)


def _written(trails: Trails, into: Any, where: Any, value: Any) -> None:
    """Note what `into[where] = value` does to scores: scores[mask] = -inf, or scores that are written into a buffer."""
    trail, part = trails.get(into, changed=True), trails.get(value)
    if trail is not None:
        if trail.of is None and isinstance(where, Tensor) and where.dtype == torch.bool:
            where = where[(...,) + (None,) * (len(trail.shape) - where.ndim)]
            trails.put(into, _fill(trail, None, where, value))
        else:
            trails.put(into, trail.with_problem(f"the {what(trail)} were assigned to in place"))
    elif part is not None:
        whole = into.shape == value.shape and where in (Ellipsis, slice(None))
        trails.put(into, part if whole else part.with_problem(f"the {what(part)} were assembled from parts"))


def _fill(trail: Trail, step: Step | None, forbidden: Any, value: Any) -> Trail:
    def otherwise(problem: str) -> Trail:
        return trail.with_problem(problem) if step is None else in_place(trail, step)

    if trail.view is not None or trail.loose:
        return otherwise("the scores were filled in another shape")
    if not isinstance(forbidden, Tensor) or forbidden.dtype not in (torch.bool, torch.uint8):
        return otherwise("the scores were filled under a mask that is not a bool tensor")
    if isinstance(value, Tensor) and value.numel() > 1 and bool((value == value.flatten()[0]).all()):
        value = value.flatten()[0]
    if isinstance(value, Tensor) and value.numel() != 1:
        return otherwise("the scores were replaced by several numbers under a mask")
    if trail.sinks is not None or not float(value) <= FORBIDS:
        return otherwise(f"the scores were filled with {float(value):g}, which forbids nothing")
    return trail.but(fills=(*trail.fills, (trail.canonical(forbidden.bool()), float(value))))


def _joined(trails: Trails, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> None:
    """Set the trail (history) of scores that are concatenated with a column of sinks, or with scores of other keys."""
    parts: Any = args[0] if args else next(iter(kwargs.values()))
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    known = [trails.get(x) for x in parts]
    trail = next((each for each in known if each is not None), None)
    if trail is None:
        return
    problem = trail.with_problem(f"the {what(trail)} were joined with something else by `{name}`")
    last = name != "stack" and dim in (-1, out.ndim - 1)
    if not last or trail.of is not None or trail.sinks is not None or trail.order or trail.view or trail.problem:
        trails.put(out, problem)
    elif all(each is not None for each in known):
        trails.put(out, _beside([each for each in known if each is not None]) or problem)
    elif len(parts) == 2 and parts[known.index(None)].shape[-1] == 1:
        sinks = parts[known.index(None)]
        trails.put(out, trail.but(sinks=sinks, sinks_first=known[0] is None))
    else:
        trails.put(out, trail.with_problem("the scores were concatenated with something that is no column of sinks"))


def _beside(parts: list[Trail]) -> Trail | None:
    """Return the trail (history) of the scores of the same queries with several sets of keys; None if not possible."""
    first, *others = parts
    for each in others:
        if each.q is None or each.k is None or first.q is None:
            return None
        plain = not (each.terms or each.fills or each.loose or each.problem or each.order or each.view)
        alike = each.factor == first.factor and each.inner == first.inner and each.lead == first.lead
        if not plain or not alike or each.sinks is not None or not torch.equal(each.q, first.q):
            return None
    if first.terms or first.fills or first.loose:
        return None
    sets = [each.k.expand(*first.lead, *each.k.shape[-2:]) for each in parts if each.k is not None]
    keys = torch.cat(sets, -2)
    return first.but(k=keys, keys=keys.shape[-2], product=object())


# Rules for the softmax.


def _normalised(trail: Trail, step: Step) -> Trail:
    dim, x = step.argument(1, "dim"), step.tracked
    trail = trail.but(of=Softmax(), logs=step.name == "log_softmax", dtype=x.dtype if trail.loose else trail.dtype)
    if trail.problem or step.name not in SOFTMAXES:
        return unknown(trail, step)
    places = axes(trail, trail.shape)
    at = (dim if isinstance(dim, int) else -1) % step.out.ndim
    keys, rows = len(trail.sizes) - 1, len(trail.sizes) - 2
    if places is None or places[at] not in (keys, rows):
        what = "the keys" if places is None or places[at] is None else "the keys, but over examples or heads"
        return trail.with_problem(f"the softmax was taken over dimension {dim}, not over {what}")
    if places[at] == rows:
        if trail.sinks is not None:
            return trail.with_problem(f"the softmax was taken over dimension {dim}, not over the keys")
        trail = _turned(trail.but(loose=trail.loose or trail.shifted))
    return trail.but(scores=at_home(trail, x)) if trail.loose else trail


def _turned(trail: Trail) -> Trail:
    """Return the trail (history) of the same scores seen as k qᵀ: queries and keys have exchanged their roles."""
    rows, keys = len(trail.lead), len(trail.lead) + 1
    swap = {rows: keys, keys: rows}
    order = tuple(swap.get(at, at) for at in trail.order or range(keys + 1))

    def turned(pairs: Iterable[tuple[Tensor, float]]) -> tuple[tuple[Tensor, float], ...]:
        return tuple((x[(None,) * max(0, 2 - x.ndim)].mT, c) for x, c in pairs)

    return trail.but(
        q=trail.k, k=trail.q, rows=trail.keys, keys=trail.rows, terms=turned(trail.terms), fills=turned(trail.fills),
        order=None if order == tuple(range(keys + 1)) else order, born=None,
    )  # fmt: skip


def _exponential(trail: Trail, step: Step) -> Trail:
    """Return the trail (history) of exp(scores).

    It is a softmax once it is divided by its sum, or if the log of that sum was subtracted from the scores before.
    """
    if trail.of is not None:
        return trail.but(logs=False, softmax=None) if trail.logs and not trail.used else in_place(trail, step)
    if trail.sinks is not None:
        return unknown(trail, step)
    trail = trail.but(of=Softmax(), exps=True)
    return _sums_to_one(trail.but(scores=at_home(trail, step.tracked)) if trail.loose else trail, step)


def _sums_to_one(trail: Trail, step: Step) -> Trail:
    if trail.problem or tuple(step.out.shape) != trail.shape:
        return unknown(trail, step)
    return trail.but(exps=not sum_to_one(at_home(trail, step.out)), softmax=None)


def sum_to_one(weights: Tensor) -> bool:
    """Whether each row of weights [..., Q, K] sums to 1 (up to rounding) or to 0."""
    eps, sums = torch.finfo(weights.dtype).eps, weights.float().sum(-1)
    return bool(((sums - 1).abs() <= (16 if eps < 1e-4 else 4) * eps).logical_or(sums == 0).all())


def is_softmax(weights: Tensor) -> bool:
    """Whether these numbers may be the weights of a softmax: none is negative, and rows sum to 1."""
    return sum_to_one(weights) and not bool((weights < 0).any())


def _divided(trail: Trail, step: Step) -> Trail:
    if trail.exps and step.at == 0:
        found, by = _sums_to_one(trail, step), step.other()
        rows = isinstance(by, Tensor) and by.ndim == step.tracked.ndim and by.shape[-1] == 1
        # Divided by more than their sum, as "off by one": each row's shares, and the numbers that were used.
        return found.but(exps=False, used="div") if found.exps and rows and trail.q is not None else found
    return _unchanged(trail, step)


def _squashed(trail: Trail, step: Step) -> Trail:
    """Return the trail (history) of a sigmoid of the scores (sigmoid attention)."""
    return in_place(trail.but(of=Softmax()), step)


# Rules for weights.


def _dropped(trail: Trail, step: Step) -> Trail:
    training = step.argument(2, "training", step.argument(2, "train", True))
    p = float(step.argument(1, "p", 0.5)) if training else 0.0
    return trail.but(dropout=1 - (1 - trail.dropout) * (1 - p))


def _multiplied(trail: Trail, step: Step) -> Trail:
    """Return the trail (history) of weights times a factor of 1 (a head mask), or times values, elementwise."""
    other = step.other()
    if not isinstance(other, Tensor) or tuple(step.out.shape) == trail.shape or trail.values is not None:
        return _unchanged(trail, step)
    return trail.but(values=other, softmax=at_home(trail, step.tracked) if trail.used else trail.softmax)


def _cut(trail: Trail, step: Step) -> Trail:
    """Return the trail (history) of a slice of weights.

    weights[..., :-1] removes the column of sinks; other slices take all keys or some keys.
    """
    weights, out = step.tracked, step.out
    if trail.sinks is not None and not trail.sinks_cut:
        of_keys = weights[..., 1:] if trail.sinks_first else weights[..., :-1]
        if is_same_view(out, of_keys):
            return trail.but(sinks_cut=True, softmax=out)
    if same_but_ones(weights, out):
        return trail if out.shape == weights.shape else reshaped(trail, step)
    return _unchanged(trail, step)


_BEFORE: dict[str, Rule] = {
    **dict.fromkeys(ARRANGE, reshaped),
    **dict.fromkeys((*LIMIT, "getitem", "slice", "narrow"), _unchanged),
    **dict.fromkeys((*MULTIPLY, *DIVIDE), _scaled),
    **dict.fromkeys((*ADD, *SUBTRACT), _added),
    "masked_fill": _filled,
    "where": _chosen,
    "tanh": _capped,
    "exp": _exponential,
    "sigmoid": _squashed,
    **dict.fromkeys(TURN, permuted),
}
_AFTER: dict[str, Rule] = {
    **dict.fromkeys(ARRANGE, reshaped),
    "dropout": _dropped,
    "exp": _exponential,
    **dict.fromkeys(MULTIPLY, _multiplied),
    **dict.fromkeys(DIVIDE, _divided),
    **dict.fromkeys((*LIMIT, "masked_fill", "where"), _unchanged),
    **dict.fromkeys(("getitem", "slice", "narrow"), _cut),
    **dict.fromkeys(TURN, permuted),
}
