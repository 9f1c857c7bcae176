"""The products at both ends of attention: q kᵀ, where a trail begins, and that of the weights with the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from headwise.capture.trail import Trail, Trails


def product(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Trail | None:
    """The trail of a product that may be q kᵀ: of matmul, bmm, baddbmm, einsum."""
    if not out.is_floating_point() or out.ndim < 2:
        return None
    terms: tuple[tuple[Tensor, float], ...] = ()
    factor = 1.0
    if name == "einsum":
        operands = einsum_operands(args)
        if operands is None or (roles := _einsum_roles(*operands)) is None:
            return None
        q, k = roles
    elif name in ("baddbmm", "baddbmm_"):
        base, q, k = (*args, *kwargs.values())[:3]
        factor, beta = float(kwargs.get("alpha", 1)), float(kwargs.get("beta", 1))
        k = k.mT
        if beta:
            # In place, what was added is gone: the scores stand where it stood.
            terms = ((base, beta),) if name == "baddbmm" else ()
            if name == "baddbmm_":
                return Trail(q, k, tuple(out.shape[:-2]), out.dtype, problem="baddbmm_ overwrote what it added")
    else:
        q, k = (*args, *kwargs.values())[:2]
        if name == "__rmatmul__":
            q, k = k, q
        if not isinstance(q, Tensor) or not isinstance(k, Tensor) or min(q.ndim, k.ndim) < 2:
            return None
        k = k.mT
    return Trail(q, k, tuple(out.shape[:-2]), out.dtype, factor=factor, terms=terms)


def einsum_operands(args: Sequence[Any]) -> tuple[str, Tensor, Tensor] | None:
    """(equation, first, second) of an einsum of two tensors; None for any other."""
    if len(args) < 2 or not isinstance(args[0], str):
        return None
    tensors = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
    return (args[0].replace(" ", ""), *tensors) if len(tensors) == 2 and "." not in args[0] else None


def _einsum_roles(equation: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """q [*lead, Q, D] and k [*lead, K, D] of an equation such as "bihd,bjhd->bhij"; None if it is not of that form."""
    inputs, _, output = equation.partition("->")
    one, _, two = inputs.partition(",")
    if len(output) < 2 or len(set(one)) != len(one) or len(set(two)) != len(two):
        return None
    summed = (set(one) & set(two)) - set(output)
    *lead, i, j = list(output)
    if not summed or set(one) | set(two) != set(output) | summed:
        return None
    if i in two and j in one and i not in one and j not in two:
        (one, a), (two, b) = (two, b), (one, a)
    if i not in one or j not in two or i in two or j in one:
        return None
    d = sorted(summed)

    def arrange(x: Tensor, letters: str, row: str) -> Tensor:
        order = [*(letter for letter in lead if letter in letters), row, *d]
        x = x.permute([letters.index(letter) for letter in order]).flatten(-len(d))
        for at, letter in enumerate(lead):
            if letter not in letters:
                x = x.unsqueeze(at)
        return x

    return arrange(a, one, i), arrange(b, two, j)


def values(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], trails: Trails
) -> tuple[Trail, Tensor, Callable[[Tensor], Tensor]] | None:
    """Where weights meet their values: (their trail, v [*lead, K, E], what brings the output to [*lead, Q, E])."""
    if name == "einsum":
        operands = einsum_operands(args)
        if operands is None:
            return None
        return _einsum_values(*operands, trails)
    weights, v = (*args, *kwargs.values())[1 if "baddbmm" in name else 0 :][:2]
    if name == "__rmatmul__":
        weights, v = v, weights
    trail = trails.get(weights)
    if trail is None or trail.softmax is None or not isinstance(v, Tensor) or v.ndim < 2:
        return None
    return trail, v, lambda out: out


def _einsum_values(
    equation: str, a: Tensor, b: Tensor, trails: Trails
) -> tuple[Trail, Tensor, Callable[[Tensor], Tensor]] | None:
    inputs, _, output = equation.partition("->")
    one, _, two = inputs.partition(",")
    if trails.get(a) is None:
        (one, a), (two, b) = (two, b), (one, a)
    trail = trails.get(a)
    if trail is None or trail.softmax is None or len(one) < 2:
        return None
    *lead, i, j = list(one)
    extra = [letter for letter in two if letter not in one]
    if j not in two or j in output or i in two or len(extra) != 1 or set(output) != {*lead, i, *extra}:
        return None
    order = [letter for letter in lead if letter in two]
    v = b.permute([two.index(letter) for letter in (*order, j, *extra)])
    for at, letter in enumerate(lead):
        if letter not in two:
            v = v.unsqueeze(at)
    back = [output.index(letter) for letter in (*lead, i, *extra)]
    return trail, v, lambda out: out.permute(back)
