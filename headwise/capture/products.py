"""Recognises the two products of attention: q kᵀ, and the product of the weights with the values.

A trail (trail.py: how scores were computed) begins at q kᵀ. Every product is read as an einsum: a letter for each
dimension of both factors and of the result.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from headwise.capture.arrangement import axes
from headwise.capture.trail import Trail, Trails, is_learned, is_parameter

_SUMS = ("sum", "mean")
_OF_MANY = ("linalg_multi_dot", "chain_matmul")
PRODUCTS = (
    *("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "mv", "baddbmm", "baddbmm_", "einsum", "cdist"),
    *(*_SUMS, *_OF_MANY),
)


class Met(NamedTuple):
    """A product in which weights are multiplied with their values."""

    trail: Trail
    product: Einsum  # the product of the weights and the other factor
    values: Tensor | None = None  # [*lead, K, E]; None where they cannot be arranged like that
    arrange: Callable[[Tensor], Tensor] | None = None  # brings the product to [*lead, Q, E]
    kind: str = ""  # why this is not attention, "mixed" for a product that does not sum over keys, else empty


class Einsum(NamedTuple):
    """A product of two tensors, with the letters of both and of the result (as in an einsum); all empty if unknown."""

    one: str
    two: str
    out: str
    a: Tensor
    b: Tensor

    def swapped(self) -> Einsum:
        return Einsum(self.two, self.one, self.out, self.b, self.a)

    @property
    def summed(self) -> set[str]:
        return set(self.one) & set(self.two) - set(self.out)


# The product q kᵀ.


def product(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], trails: Trails, out: Tensor) -> Trail | None:
    """Begin the trail (how scores are computed) of a product that may be q kᵀ; None for any other product.

    The product is a matmul, bmm, baddbmm, linear or einsum, or a matrix of distances (cdist).
    """
    if not out.is_floating_point() or out.ndim < 2:
        return None
    mixed = _mixed(name, args, kwargs, trails, out) if trails else None
    if mixed is not None:
        return mixed
    lead, dtype = tuple(out.shape[:-2]), out.dtype
    if name == "einsum":
        found = _read(name, args, kwargs)
        return None if found is None else _scores(found, out)
    if name in (*_SUMS, *_OF_MANY):
        return None
    if name in ("baddbmm", "baddbmm_"):
        base, q, k = (*args, *kwargs.values())[:3]
        alpha, beta = float(kwargs.get("alpha", 1)), float(kwargs.get("beta", 1))
        trail = Trail(q, k.mT, lead, dtype, *out.shape[-2:]).but(factor=alpha)
        if beta and name == "baddbmm_":
            return trail.with_problem("baddbmm_ overwrote what it added")
        return trail.but(terms=((base, beta),)) if beta else trail
    q, k = _factors(name, args, kwargs)
    if not isinstance(q, Tensor) or not isinstance(k, Tensor) or min(q.ndim, k.ndim) < 2:
        return None
    if name == "cdist":  # scores that are no product of q and k, and are kept beside them
        return Trail(q, k, lead, dtype, *out.shape[-2:]).but(loose=True)
    return Trail(q, k if name == "linear" else k.mT, lead, dtype, *out.shape[-2:])


def _mixed(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], trails: Trails, out: Tensor) -> Trail | None:
    """Return the trail (history) of scores whose examples or heads a product mixes (talking heads).

    The trail cannot describe the mixing, so the record must store the mixed scores.
    """
    found = None if name in (*_SUMS, *_OF_MANY, "cdist") else _read(name, args, kwargs)
    for each in () if found is None else (found, found.swapped()):
        trail = trails.get(each.a)
        places = None if trail is None else axes(trail, each.a.shape)
        if trail is None or trail.problem or trail.q is None or trail.k is None or places is None:
            continue
        if not is_learned(trail) and all((places[each.one.index(x)] or 0) < len(trail.lead) for x in each.summed):
            new = [x for x in each.two if x not in each.one]
            mixed = trail.but(loose=True, order=None, view=None)
            if len(new) == len(each.summed) == 1 and set(each.out) == {*each.one, *new} - each.summed:
                (gone,) = each.summed
                order = [places[each.one.index(gone if x == new[0] else x)] for x in each.out]
                known = tuple(at for at in order if at is not None)
                mixed = mixed.but(order=None if known == tuple(range(len(order))) else known)
                if len(known) == len(order) == len(trail.sizes) and tuple(out.shape) == mixed.shape:
                    return mixed
            return trail.with_problem(f"the scores were mixed with each other by `{name}`")
    return None


def _scores(found: Einsum, out: Tensor) -> Trail | None:
    """Begin a trail (history) with q [*lead, Q, D], k [*lead, K, D] at an einsum: "bihd,bjhd->bhij", in any order."""
    letters = found.out
    if len(letters) < 2 or {*found.one, *found.two} != {*letters, *found.summed} or not found.summed:
        return None
    only_one = [x for x in letters if x not in found.two]
    only_two = [x for x in letters if x not in found.one]
    if not only_one and len(only_two) == 1 and letters[-1] in only_two and len(letters) > 2:
        return _read_own_keys(found, out)
    if not only_one or not only_two:
        return None
    if (letters[-1] in only_one and len(only_two) > 1) or (letters[-1] in only_one and letters[-2] in only_two):
        found, only_one, only_two = found.swapped(), only_two, only_one
    # One factor may lack heads or examples, as the keys of multi-query attention do: the other letters are rows and
    # columns.
    j = max(only_two, key=letters.index)
    i = min(only_one, key=lambda x: (abs(letters.index(x) - letters.index(j)), -letters.index(x)))
    lead = [x for x in letters if x not in (i, j)]
    last = sorted(found.summed)
    q, k = (
        _arranged(x, own, lead, [row, *last]).flatten(-len(last))
        for x, own, row in ((found.a, found.one, i), (found.b, found.two, j))
    )
    home = [*lead, i, j]
    order = tuple(home.index(x) for x in letters)
    sizes = tuple(out.shape[letters.index(x)] for x in lead)
    straight = order == tuple(range(len(home)))
    return Trail(q, k, sizes, out.dtype, q.shape[-2], k.shape[-2], order=None if straight else order)


def _read_own_keys(found: Einsum, out: Tensor) -> Trail:
    """Begin a trail (history of scores) at a product in which each query has its own keys, "bhtd,bhtwd->bhtw".

    Each query is then the only row of its keys: [B, H, T, 1, W].
    """
    lead, last = list(found.out[:-1]), sorted(found.summed)
    q = _arranged(found.a, found.one, lead, last).flatten(-len(last)).unsqueeze(-2)
    k = _arranged(found.b, found.two, lead, [found.out[-1], *last]).flatten(-len(last))
    shape = tuple(out.shape)
    return Trail(q, k, shape[:-1], out.dtype, 1, shape[-1], view=shape)


# Weights and values.


def values(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], trails: Trails, out: Tensor) -> Met | None:
    """Find the weights in a product in which they are multiplied with their values; None for any other product."""
    if name in _SUMS:
        return _summed(args, kwargs, trails, out)
    if name == "cdist":
        return None
    found = None if name in _OF_MANY else _read(name, args, kwargs)
    if found is None:
        return _find_in_many(name, args, trails)
    one, two = (None if x is None or x.is_bare_exp else x for x in map(trails.get, (found.a, found.b)))
    of_one, of_two = (each is not None and each.of is not None for each in (one, two))
    if of_one and of_two:
        assert one is not None
        return Met(one, found, kind="factors")
    if of_two:
        one, found = two, found.swapped()
    if one is None or one.of is None:
        return _without_softmax(name, one, found) or _without_softmax(name, two, found.swapped())
    if one.problem or one.values is not None:
        return Met(one.with_problem(f"the weights went through `{name}`"), found)
    places = axes(one, found.a.shape)
    if places is None:
        return Met(one.with_problem("the weights met their values in another shape"), found)
    return _met(one, found, places)


def _without_softmax(name: str, trail: Trail | None, found: Einsum) -> Met | None:
    """Find scores without a softmax in a product that multiplies them with a tensor, and sums over the keys."""
    if trail is None or trail.q is None or trail.k is None or (trail.problem and name == "einsum"):
        return None
    if is_learned(trail):
        return None
    places = axes(trail, found.a.shape)
    summed = [] if places is None else [places[found.one.index(x)] for x in found.summed]
    keys = len(trail.sizes) - 1
    if places is None or summed != [keys] or is_parameter(found.b):
        return None
    return Met(trail, found, kind="no softmax")


def _met(trail: Trail, found: Einsum, places: list[int | None]) -> Met:
    keys, rows = len(trail.sizes) - 1, len(trail.sizes) - 2
    summed = {places[found.one.index(x)] for x in found.summed}
    met = Met(trail, found)
    if keys not in summed:
        return met._replace(kind="assigned" if rows in summed and trail.q is not None else "mixed")
    wide = {x for x, size in zip(found.two, found.b.shape, strict=True) if size != 1}
    if trail.q is None:  # for a softmax without queries, the rows are the dimensions that its values lack
        own = [at for at, x in zip(places, found.one, strict=True) if x not in wide and at is not None]
        if own and rows not in own:
            trail, places = _with_rows(trail, own[-1], places)
        if trail.rows == 1 and own:
            return met._replace(
                trail=trail.with_problem("one row of weights meets values: a pooling, or a query alone")
            )
        if not own:
            return met._replace(kind="a sum of each row's own values, as of a gate, a router or a pooling")
    if summed - {keys}:
        return met._replace(trail=trail.with_problem("the weights were summed over more than their keys"))
    by = {at: x for at, x in zip(places, found.one, strict=True) if at is not None}
    if by.get(rows) in wide:
        return met._replace(kind="a sum of each row's own values, as of a gate, a router or a convolution")
    extra = [x for x in found.two if x not in found.one]
    spare = iter(set(string.ascii_letters) - {*found.one, *found.two, *found.out})
    lead = [by.get(at) or next(spare) for at in range(rows)]
    i, j = by.get(rows), by[keys]
    met = met._replace(trail=trail)
    if len(extra) != 1 or i is None or set(found.out) - {*lead, i, *extra} or not {i, *extra} <= set(found.out):
        return met
    v, two = found.b, found.two
    if i in two:  # of size 1
        v, two = v.squeeze(two.index(i)), two.replace(i, "")
    v = _arranged(v, two, lead, [j, *extra])
    back = [found.out.index(x) for x in (*lead, i, *extra) if x in found.out]
    missing = [at for at, x in enumerate(lead) if x not in found.out]

    def arrange(out: Tensor) -> Tensor:
        out = out.permute(back)
        for at in missing:
            out = out.unsqueeze(at)
        return out

    return met._replace(values=v, arrange=arrange)


def arrange_weights(met: Met) -> Tensor | None:
    """Arrange weights as [*lead, Q, K], by the letters of their product with the values; None if that is impossible."""
    one, two, after, weights, other = met.product
    summed = [x for x in one if x in two and x not in after]
    wide = {x for x, size in zip(two, other.shape, strict=True) if size != 1} if two else set()
    own = [x for x in one if x in after and x not in wide]
    if len(summed) != 1 or not own:
        return None
    keys = one.index(summed[0])
    row = min(own, key=lambda x: (abs(one.index(x) - keys), one.index(x)))
    return _arranged(weights, one, [x for x in one if x not in (row, *summed)], [row, *summed])


def _with_rows(trail: Trail, rows: int, places: list[int | None]) -> tuple[Trail, list[int | None]]:
    """Take dimension `rows` as the rows of a trail (history) without queries; return the new trail and `places`.

    `places` gives the dimension of the trail for each dimension of the weights.
    """
    sizes = trail.sizes
    home = list(range(len(sizes)))
    home.insert(len(home) - 2, home.pop(rows))
    order = tuple(home.index(at) for at in trail.order or range(len(sizes)))
    trail = trail.but(
        lead=tuple(sizes[at] for at in home[:-2]),
        rows=sizes[rows],
        order=order,
        softmax=None,
        used=trail.used or "view",
    )
    return trail, [None if at is None else home.index(at) for at in places]


def _summed(args: Sequence[Any], kwargs: Mapping[str, Any], trails: Trails, out: Tensor) -> Met | None:
    """Find weights that are multiplied with values element by element, then summed: (weights · values).sum(…)."""
    trail = trails.get(args[0]) if args else None
    if trail is not None and trail.intact is not None and trail.problem and args[0].ndim > len(trail.sizes):
        # Weights whose trail was lost, times values, element by element.
        return Met(trail, Einsum("", "", "", args[0], args[0]))
    if trail is None or trail.values is None:
        return None
    x, v = args[0], trail.values
    dims = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    dims = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {dim % x.ndim for dim in dims}
    trail = trail.but(values=None)
    shape = (1,) * (x.ndim - len(trail.shape)) + trail.shape
    dimensions = axes(trail, shape)
    if trail.problem or dimensions is None or trail.softmax is None:
        return Met(trail.with_problem("the weights met their values in another shape"), Einsum("", "", "", x, v))
    letters = string.ascii_letters[: x.ndim]

    def wide(sizes: Sequence[int]) -> str:
        sizes = (1,) * (x.ndim - len(sizes)) + tuple(sizes)
        return "".join(letter for letter, size in zip(letters, sizes, strict=True) if size != 1)

    places = [at for at, size in zip(dimensions, shape, strict=True) if size != 1]
    after = "".join(x for i, x in enumerate(letters) if i not in gone)
    found = Einsum(wide(shape), wide(v.shape), after, trail.softmax, v.squeeze())
    trail = trail.but(view=None, order=None)
    if not any(at == len(trail.sizes) - 1 and found.one[i] in found.summed for i, at in enumerate(places)):
        return None
    return _met(trail, found, places)._replace(values=None, arrange=None)


def _find_in_many(name: str, args: Sequence[Any], trails: Trails) -> Met | None:
    """Find weights in a product of one tensor, or of more than two, which is not supported: it becomes a problem."""
    for x in (x for each in args for x in (each if isinstance(each, (list, tuple)) else (each,))):
        trail = trails.get(x)
        if trail is not None and trail.of is not None:
            problem = f"the weights met more than their values in `{name}`"
            return Met(trail.with_problem(problem), Einsum("", "", "", x, x))
    return None


# The letters of products.


def _factors(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the left and the right factor of a product."""
    left, right = (*args, *kwargs.values())[1 if "addbmm" in name or "addmm" in name else 0 :][:2]
    return (right, left) if name == "__rmatmul__" else (left, right)


def _read(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Einsum | None:
    """Read a product of two tensors as an einsum; None for any other operation."""
    if name == "einsum":
        return _einsum(args)
    a, b = _factors(name, args, kwargs)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not a.ndim or not b.ndim:
        return None
    summed, left, right = "z", "x" if a.ndim > 1 else "", "y" if b.ndim > 1 else ""
    if name == "linear":
        before = string.ascii_lowercase[: a.ndim - 2] if a.ndim > 1 else ""
        return Einsum(before + left + summed, right + summed, before + left + right, a, b)
    lead = string.ascii_lowercase[: max(a.ndim, b.ndim, 2) - 2]
    one = lead[len(lead) - max(0, a.ndim - 2) :]
    two = lead[len(lead) - max(0, b.ndim - 2) :]
    return Einsum(one + left + summed, two + summed + right, lead + left + right, a, b)


def _einsum(args: Sequence[Any]) -> Einsum | None:
    if len(args) < 2 or not isinstance(args[0], str):
        return None
    tensors = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
    equation = args[0].replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    one, _, two = inputs.partition(",")
    if len(tensors) != 2 or "," in two or not isinstance(tensors[0], Tensor) or not isinstance(tensors[1], Tensor):
        return None
    a, b = tensors
    if "..." in equation:
        free = "".join(x for x in string.ascii_letters if x not in equation)
        sizes = [x.ndim - len(letters.replace("...", "")) for letters, x in ((one, a), (two, b)) if "..." in letters]
        free = free[: max(sizes)]
        one, two = (
            letters.replace(
                "...", free[len(free) - (x.ndim - len(letters.replace("...", ""))) :] if "..." in letters else ""
            )
            for letters, x in ((one, a), (two, b))
        )
        output = output.replace("...", free) if arrow else free
    if not arrow:
        both = one + two
        output += "".join(sorted(x for x in set(both) if both.count(x) == 1 and x not in output))
    if len(set(one)) != len(one) or len(set(two)) != len(two):
        return None
    return Einsum(one, two, output, a, b)


def _arranged(x: Tensor, letters: str, lead: list[str], last: list[str]) -> Tensor:
    """Arrange the dimensions of `x` in the order (*lead, *last); a leading dimension that it lacks gets size 1."""
    order = [letter for letter in (*lead, *last) if letter in letters]
    x = x.permute([letters.index(letter) for letter in order])
    for at, letter in enumerate(lead):
        if letter not in letters:
            x = x.unsqueeze(at)
    return x
