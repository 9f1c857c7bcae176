"""Follows how views, reshapes and permutations rearrange the dimensions of attention scores and weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from headwise.capture.operation import Step, unknown
from headwise.capture.trail import Trail


def axes(trail: Trail, shape: Sequence[int]) -> list[int | None] | None:
    """Find, for each dimension of a view of the scores [*lead, Q, K], which of these dimensions it is.

    `lead` are the dimensions before Q and K. None stands for an additional dimension of size 1. The whole result is
    None if the view splits or joins dimensions.
    """
    sizes = trail.sizes
    home = trail.order or tuple(range(len(sizes)))
    if len(shape) == len(home) and all(shape[i] == sizes[at] for i, at in enumerate(home)):
        return list(home)
    wide = [at for at in home if sizes[at] != 1]
    if [size for size in shape if size != 1] != [sizes[at] for at in wide]:
        return None
    remaining = iter(wide)
    return [None if size == 1 else next(remaining) for size in shape]


def same_but_ones(x: Tensor, y: Tensor) -> bool:
    """Return whether two views read the same numbers in memory, apart from dimensions of size 1."""
    (a, b), (c, d) = (
        ([n for n in z.shape if n != 1], [s for n, s in zip(z.shape, z.stride(), strict=True) if n != 1])
        for z in (x, y)
    )
    return a == c and b == d and x.data_ptr() == y.data_ptr()


def reshaped(trail: Trail, step: Step) -> Trail:
    """Return the trail (how scores were computed from q kᵀ) after a reshape of the scores.

    A reshape of only batch and heads is described exactly. After another reshape the trail notes the new shape as its
    `view`, which a later reshape may undo.
    """
    home, out = trail.but(view=None).shape, tuple(step.out.shape)
    if out == home:
        return trail if trail.view is None else trail.but(view=None)
    if math.prod(out) != math.prod(home) or trail.values is not None:
        return unknown(trail, step)
    if trail.order is not None or len(out) < 2 or out[-2:] != home[-2:]:
        return trail.but(view=out)
    if trail.sinks is not None:
        return unknown(trail, step)
    lead = out[:-2]

    def follow(x: Tensor) -> Tensor:
        if all(size == 1 for size in x.shape[:-2]):
            return x[(0,) * (x.ndim - 2)]
        return x.expand(*trail.lead, *x.shape[-2:]).reshape(*lead, *x.shape[-2:])

    terms, fills = (tuple((follow(x), c) for x, c in pairs) for pairs in (trail.terms, trail.fills))
    softmax, scores = (None if x is None else x.reshape(out) for x in (trail.softmax, trail.scores))
    q, k = (None if x is None else follow(x) for x in (trail.q, trail.k))
    heads = math.prod(trail.lead[1:]) if len(trail.lead) > 1 and len(lead) == 1 else trail.heads
    return trail.but(
        heads=heads, q=q, k=k, lead=lead, terms=terms, fills=fills, softmax=softmax, scores=scores, view=None
    )


def permuted(trail: Trail, step: Step) -> Trail:
    """Return the trail (how scores were computed from q kᵀ) after their dimensions were put in another order."""
    n = len(trail.shape)
    order = _order(step, n)
    if order is None or trail.view is not None or trail.values is not None:
        return unknown(trail, step)
    home = trail.order or tuple(range(n))
    now = tuple(home[at] for at in order)
    return trail.but(order=None if now == tuple(range(n)) else now)


def _order(step: Step, n: int) -> tuple[int, ...] | None:
    """Return, for each dimension of a permutation's result, its number among the input's dimensions; None = unknown."""
    order = list(range(n))
    given = [x for x in (*step.args, *step.kwargs.values()) if not isinstance(x, Tensor)]
    if step.name in ("mT", "adjoint", "mH"):
        given = [-1, -2]
    elif step.name in ("T", "t", "numpy_T"):
        return tuple(reversed(order))
    if step.name == "permute":
        dims = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
        return tuple(dim % n for dim in dims) if len(dims) == n else None
    if step.name in ("movedim", "moveaxis"):
        if not all(isinstance(x, int) for x in given):
            return None
        order.insert(given[1] % n, order.pop(given[0] % n))
        return tuple(order)
    a, b = given[0] % n, given[1] % n
    order[a], order[b] = order[b], order[a]
    return tuple(order)
