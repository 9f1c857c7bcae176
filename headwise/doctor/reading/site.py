"""One softmax and the products around it: queries, keys, scores, weights and values in the standard order.

The query and key of each score (sides.py) tell whether the layout is that of attention (placement.py) and, if so, which
score belongs to which query and key.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from headwise.doctor.finding import Where
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import FORBIDDEN, Operand, Seed, Softmax, Step, Trace, row_and_column
from headwise.doctor.reading.placement import Grid, Layout, Placement, read_grid, read_layout, read_placement
from headwise.doctor.reading.sides import Contraction, Side, features_of, read_contraction, read_sides, varies


class Site:
    """One softmax and the products around it."""

    def __init__(self, run: Trace, softmax: Softmax, product: Seed) -> None:
        self.trace, self.softmax, self.product = run, softmax, product

    # which tensor is which

    @functools.cached_property
    def sources(self) -> Tensor:
        """[rows, J]: the element of the product for each score, one row of the softmax after the other."""
        return rows_of(self.softmax.source, self.softmax.dims)

    @functools.cached_property
    def _sides(self) -> tuple[Side, Side]:
        """The rows of the score product, and its columns."""
        return read_sides(self.trace, self.product, self.sources)

    @functools.cached_property
    def contraction(self) -> Contraction | None:
        """The product of weights and values; None if there is none."""
        later = (x for x in self.trace.seeds if x.order > self.product.order and x.kind == "product")
        met = (read_contraction(self.product, x) for x in later)
        return next((x for x in met if x is not None), None)

    @property
    def _met(self) -> Contraction:
        """The contraction, of a site that has one."""
        assert self.contraction is not None
        return self.contraction

    @functools.cached_property
    def queries_left(self) -> bool:
        """Whether the rows of the score product are queries: the side whose tokens differ from those of the values."""
        met = self.contraction
        if met is not None and met.side is not None:
            return met.side == "right"
        left, right = self._sides
        return bool(varies(right.token).float().mean() >= varies(left.token).float().mean())

    @property
    def query(self) -> Side:
        return self._sides[0 if self.queries_left else 1]

    @property
    def key(self) -> Side:
        return self._sides[1 if self.queries_left else 0]

    @functools.cached_property
    def layout(self) -> Layout:
        """What changes along a row of the softmax. Masked scores may be those of other queries: windows are cut so."""
        seen = rows_of(self.softmax.scores, self.softmax.dims) > FORBIDDEN
        return read_layout(self.query.within(seen), self.key)

    def placement(self, name: str) -> Placement:
        """The placement of the queries ("q"), keys ("k") or values ("v") in the product that they enter."""
        return read_placement(self.trace, *self._vectors(name))

    def _vectors(self, name: str) -> tuple[Operand, int]:
        """The operand that holds the queries, keys or values, and the dim of their features."""
        if name == "v":
            return self._met.values, -1 if self._met.left else -2
        rows, columns = self.product.operands
        return (rows, -1) if (name == "q") == self.queries_left else (columns, -2)

    # in the standard order

    @functools.cached_property
    def grid(self) -> Grid | None:
        """The position of every (b, h, q, k) in the product; None if the layout is not that of attention."""
        if not self.layout.right or self.product.value.ndim < 2:
            return None
        return read_grid(self.product, self.sources, self.query, self.key, queries_left=self.queries_left)

    @property
    def known(self) -> bool:
        """Whether its queries, keys and values are known, in the standard order."""
        return self.grid is not None and self.contraction is not None

    @property
    def _elements(self) -> Tensor:
        """[B, H, Q, K]: the index of each score in the product, -1 if there is none, of a site that has a grid."""
        assert self.grid is not None
        return self.grid.element

    def cells(self, values: Tensor, sources: Tensor) -> Tensor:
        """[B, H, Q, K]: the numbers with these sources in the product; NaN if there is none."""
        flat = torch.full((self.product.value.numel(),), torch.nan, dtype=torch.float64)
        inside = marks.seed_of(sources) == self.product.number
        flat[marks.element_of(sources[inside])] = values[inside].double()
        return torch.where(self._elements >= 0, flat[self._elements.clamp(min=0)], torch.nan)

    @functools.cached_property
    def scores(self) -> Tensor:
        """[B, H, Q, K], the input of the softmax."""
        return self.cells(self.softmax.scores, self.softmax.source)

    @functools.cached_property
    def weights(self) -> Tensor:
        """[B, H, Q, K], the output of the softmax."""
        return self.cells(self.softmax.weights, self.softmax.source)

    def attended(self, length: int) -> Tensor:
        """[Q, K] by position: the largest weight that a query gives to a key, of all heads and examples."""
        weights = rows_of(self.softmax.weights, self.softmax.dims).double().nan_to_num(0.0)
        q, k = self.query, self.key
        known = (q.token >= 0) & (k.token >= 0)
        found = torch.zeros(length, length, dtype=torch.float64).flatten()
        place = q.position[known] * length + k.position[known]
        return found.scatter_reduce(0, place, weights[known], "amax").view(length, length)

    def weight_of_constants(self) -> float:
        """The largest weight that a query of a token gives to all keys that come from no token, such as padding."""
        given = self.given_to_constants()[0]
        return float(given.amax()) if given.numel() else 0.0

    def given_to_constants(self) -> tuple[Tensor, Tensor]:
        """The weight that each query of a token gives to all keys that come from no token, and their scores."""
        weights, scores = (rows_of(x, self.softmax.dims).double() for x in (self.softmax.weights, self.softmax.scores))
        of_token = (self.query.token >= 0).any(-1)
        of_none = (self.key.token == marks.UNKNOWN) & of_token[:, None]
        weights = weights.nan_to_num(0.0).masked_fill(~of_none, 0.0)
        return weights.sum(-1)[of_token], scores[weights > 0]

    @functools.cached_property
    def overlaps(self) -> bool:
        """Whether a key is multiplied in several blocks, as in local attention: then it has a vector in each."""
        n, m = self.product.value.shape[-2:]
        there = self._elements >= 0
        block = self._elements // (n * m)
        last, first = block.masked_fill(~there, -1).amax(2), block.masked_fill(~there, 1 << 62).amin(2)
        return bool(((last != first) & there.any(2)).any())

    @functools.cached_property
    def products(self) -> Tensor:
        """[B, H, Q, K]: q kᵀ of the operands of the product; NaN if there is no score."""
        return (self.q.double() @ self.k.double().transpose(-1, -2)).masked_fill(self._elements < 0, torch.nan)

    def _gathered(self, name: str, what: Literal["value", "source"]) -> Tensor:
        """[B, H, L, D]: the values or sources of q, k or v, in order, as operands of their product."""
        operand, dim = self._vectors(name)
        table = getattr(operand, what)
        table = table if dim == -1 else table.transpose(-1, -2)
        index = self._index_of_values if name == "v" else self._index(name, left=dim == -1)
        return table.reshape(-1, table.shape[-1])[index]

    def _index(self, name: str, *, left: bool) -> Tensor:
        """[B, H, L]: the row of the left operand (column of the right one) of every query (key)."""
        at = row_and_column(self._elements, *self.product.value.shape[-2:])[0 if left else 1]
        return at.masked_fill(self._elements < 0, -1).amax(-1 if name == "q" else -2).clamp(min=0)

    @functools.cached_property
    def _index_of_values(self) -> Tensor:
        """[B, H, K]: the row of the values that each weight is multiplied with."""
        source = self._met.weights.source
        places = torch.arange(source.numel()).reshape(source.shape)
        at = row_and_column(places, *source.shape[-2:])[1 if self._met.left else 0]
        return self.cells(at, source).nan_to_num(-1).amax(2).clamp(min=0).long()

    @functools.cached_property
    def q(self) -> Tensor:
        """[B, H, Q, D]: the queries, as an operand of the product."""
        return self._gathered("q", "value")

    @functools.cached_property
    def k(self) -> Tensor:
        return self._gathered("k", "value")

    @functools.cached_property
    def v(self) -> Tensor:
        return self._gathered("v", "value")

    def sources_of(self, name: str) -> Tensor:
        """[B, H, L, D]: the source of every number of q, k or v."""
        return self._gathered(name, "source")

    def raw(self, name: str) -> Tensor | None:
        """[B, H, L, D]: q, k or v as output by their projections, unscaled and unrotated; None if unknown."""
        return values_at(self.trace, self.sources_of(name))

    def columns(self, name: str) -> Tensor:
        """[H, D]: the feature and projection of every number of a head of q, k or v."""
        return features_of(self.trace, self.sources_of(name)[0, :, 0])

    @functools.cached_property
    def weights_at_values(self) -> Tensor:
        """[B, H, Q, K]: the weights as multiplied with the values."""
        return self.cells(self._met.weights.value, self._met.weights.source)

    @functools.cached_property
    def output(self) -> tuple[Seed, Operand, int] | None:
        """The first projection after the values, its operand that depends on the inputs, and its contracted dim."""
        met = self.contraction
        if met is None:
            return None
        for seed in self.trace.seeds:
            if seed.kind != "projection" or seed.order < met.product.order or seed.left is None:
                continue
            operand, dim = (seed.left, -1) if seed.left.live or seed.right is None else (seed.right, -2)
            if bool((marks.seed_of(operand.source) == met.product.number).any()):
                return seed, operand, dim
        return None

    @property
    def steps_before(self) -> list[Step]:
        """The elementwise steps of the scores before the softmax."""
        earlier = (x for x in self.trace.steps if x.order < self.softmax.order)
        return [x for x in earlier if bool((marks.seed_of(x.source) == self.product.number).any())]

    def where_masked(self, steps: Sequence[Step] | None = None) -> Where | None:
        """The line of the last of these steps, or of those before the softmax, that may apply a mask; else that of the
        softmax.
        """
        steps = self.steps_before if steps is None else steps
        filling = [x for x in steps if x.name in ("masked_fill", "where", "index_put")]
        masking = filling or [x for x in steps if x.name in ("add", "sub", "mul")]
        return masking[-1].where if masking else self.softmax.where

    @functools.cached_property
    def projections(self) -> dict[str, tuple[Seed, ...]]:
        """The products with parameters that q, k and v come from."""
        found = {}
        for name in "qkv" if self.contraction else "qk":
            numbers = marks.seed_of(self._vectors(name)[0].source).unique().tolist()
            found[name] = tuple(self.trace.seed(x) for x in numbers if x >= 0)
        return found


def rows_of(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """[rows, J]: each row of a softmax over these dims."""
    rest = [d for d in range(x.ndim) if d not in dims]
    return x.permute(*rest, *dims).reshape(-1, math.prod(x.shape[d] for d in dims))


def values_at(run: Trace, sources: Tensor) -> Tensor | None:
    """The numbers that vectors [.., D] with these sources had as output by their projections; None if unknown."""
    sources = _completed(sources)
    if bool((sources < 0).any()):
        return None
    found = torch.empty(sources.shape, dtype=torch.float64)
    numbers = marks.seed_of(sources)
    for number in numbers.unique().tolist():
        here = numbers == number
        values, elements = run.seed(number).value.reshape(-1), marks.element_of(sources[here])
        if int(elements.max()) >= len(values):
            return None
        found[here] = values[elements].double()
    return found


def _completed(sources: Tensor) -> Tensor:
    """Sources [.., D] of a head; where a rotation combined two numbers into each, both of them."""
    numbers = marks.seed_of(sources)
    found = sources.clone()
    for number in numbers.unique().tolist():
        here = (numbers == number).flatten(0, -2)
        if not bool((here == here[:1]).all()):  # parts of a head (one rotated, one not)
            return sources
        part = sources[..., here[0]]
        ordered = part.sort(-1).values
        if part.shape[-1] > 1 and not bool((ordered[..., 1:] != ordered[..., :-1]).all()):
            found[..., here[0]] = part.amin(-1, keepdim=True) + torch.arange(part.shape[-1])
    return found
