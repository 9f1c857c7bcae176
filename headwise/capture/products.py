"""The two products of attention: q kᵀ, where a trail begins, and the product of the weights with the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from headwise.capture.trail import Trail, Trails

Met = tuple[Trail, Tensor, Callable[[Tensor], Tensor]]


def product(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> Trail | None:
    """The trail of a product that may be q kᵀ: of matmul, bmm, baddbmm, einsum."""
    if not out.is_floating_point() or out.ndim < 2:
        return None
    lead, dtype = tuple(out.shape[:-2]), out.dtype
    if name == "einsum":
        operands = _einsum_operands(args)
        roles = None if operands is None else _einsum_roles(*operands)
        return None if roles is None else Trail(*roles, lead, dtype)
    if name in ("baddbmm", "baddbmm_"):
        base, q, k = (*args, *kwargs.values())[:3]
        alpha, beta = float(kwargs.get("alpha", 1)), float(kwargs.get("beta", 1))
        if beta and name == "baddbmm_":
            return Trail(q, k.mT, lead, dtype, problem="baddbmm_ overwrote what it added")
        return Trail(q, k.mT, lead, dtype, factor=alpha, terms=((base, beta),) if beta else ())
    q, k = _operands(name, args, kwargs)
    if not isinstance(q, Tensor) or not isinstance(k, Tensor) or min(q.ndim, k.ndim) < 2:
        return None
    return Trail(q, k.mT, lead, dtype)


def values(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], trails: Trails) -> Met | None:
    """Where weights meet their values: (their trail, v [*lead, K, E], what brings the output to [*lead, Q, E])."""
    if name == "einsum":
        operands = _einsum_operands(args)
        return None if operands is None else _einsum_values(*operands, trails)
    weights, v = _operands(name, args, kwargs)
    trail = trails.get(weights)
    if trail is None or trail.softmax is None or not isinstance(v, Tensor) or v.ndim < 2:
        return None
    return trail, v, lambda out: out


def _operands(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The left and the right factor of a product."""
    left, right = (*args, *kwargs.values())[1 if "baddbmm" in name else 0 :][:2]
    return (right, left) if name == "__rmatmul__" else (left, right)


def _einsum_operands(args: Sequence[Any]) -> tuple[str, str, str, Tensor, Tensor] | None:
    """(letters of the first, of the second, of the output, first, second) of an einsum of two tensors, else None."""
    if len(args) < 2 or not isinstance(args[0], str) or "." in args[0]:
        return None
    tensors = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
    if len(tensors) != 2:
        return None
    inputs, _, output = args[0].replace(" ", "").partition("->")
    one, _, two = inputs.partition(",")
    return one, two, output, *tensors


def _einsum_roles(one: str, two: str, output: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """q [*lead, Q, D] and k [*lead, K, D] of an equation such as "bihd,bjhd->bhij"; None if it is not of that form."""
    if len(output) < 2 or len(set(one)) != len(one) or len(set(two)) != len(two):
        return None
    *lead, i, j = list(output)
    if i not in one:
        (one, a), (two, b) = (two, b), (one, a)
    last = sorted(set(one) & set(two) - set(output))
    if not last or i not in one or j not in two or i in two or j in one or {*one, *two} != {*output, *last}:
        return None
    q, k = (_arranged(x, letters, lead, [row, *last]) for x, letters, row in ((a, one, i), (b, two, j)))
    return q.flatten(-len(last)), k.flatten(-len(last))


def _einsum_values(one: str, two: str, output: str, a: Tensor, b: Tensor, trails: Trails) -> Met | None:
    if trails.get(a) is None:
        (one, a), (two, b) = (two, b), (one, a)
    trail = trails.get(a)
    if trail is None or trail.softmax is None or len(one) < 2:
        return None
    *lead, i, j = list(one)
    extra = [letter for letter in two if letter not in one]
    if j not in two or j in output or i in two or len(extra) != 1 or set(output) != {*lead, i, *extra}:
        return None
    back = [output.index(letter) for letter in (*lead, i, *extra)]
    return trail, _arranged(b, two, lead, [j, *extra]), lambda out: out.permute(back)


def _arranged(x: Tensor, letters: str, lead: list[str], last: list[str]) -> Tensor:
    """`x` with its dimensions in the order (*lead, *last); a leading one that it does not have is of size 1."""
    order = [letter for letter in (*lead, *last) if letter in letters]
    x = x.permute([letters.index(letter) for letter in order])
    for at, letter in enumerate(lead):
        if letter not in letters:
            x = x.unsqueeze(at)
    return x
