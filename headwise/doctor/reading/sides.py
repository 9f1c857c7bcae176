"""The query and the key of each score: token and head of the row and the column of the product that it came from.

The product of the weights with the values tells which side is the keys; the output features of projections tell heads
apart.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Operand, Seed, Trace, pair_tokens, row_and_column
from headwise.doctor.reading.marks import UNKNOWN


@dataclasses.dataclass(frozen=True)
class Side:
    """For each score of a softmax [rows, J]: the token of its query (or key). -1 = no token, -2 = several."""

    token: Tensor
    example: Tensor
    position: Tensor
    feature: Tensor  # which head of which projection: the first number of the vector

    @property
    def feature_of_tokens(self) -> Tensor:
        """The features of those with a token; learned keys next to them have features of their own."""
        return self.feature.masked_fill(self.token == UNKNOWN, UNKNOWN)

    def within(self, inside: Tensor) -> Side:
        """The same where `inside` [rows, J], and no token elsewhere."""
        parts = (self.token, self.example, self.position, self.feature)
        return Side(*(x.masked_fill(~inside, UNKNOWN) for x in parts))


def read_sides(run: Trace, product: Seed, sources: Tensor) -> tuple[Side, Side]:
    """For scores with these sources: the sides that the rows and the columns of the product are."""
    left, right = product.operands
    elements = marks.element_of(sources).clamp(min=0)
    row, column = row_and_column(elements, left.value.shape[-2], right.value.shape[-1])
    features = (
        features_of_vectors(run, left, -1).reshape(-1)[row],
        features_of_vectors(run, right, -2).reshape(-1)[column],
    )
    outside = marks.seed_of(sources) != product.number
    first, second = (
        Side(tokens, marks.example_of(tokens), marks.position_of(tokens), of_heads.masked_fill(outside, UNKNOWN))
        for tokens, of_heads in zip(pair_tokens(product, sources), features, strict=True)
    )
    return first, second


def varies(x: Tensor) -> Tensor:
    """[rows]: whether a row has more than one known value."""
    high = x.masked_fill(x == UNKNOWN, -(1 << 62)).amax(-1)
    low = x.masked_fill(x == UNKNOWN, 1 << 62).amin(-1)
    return high > low


@dataclasses.dataclass(frozen=True)
class Contraction:
    """Weights times values."""

    product: Seed
    weights: Operand
    values: Operand
    left: bool  # whether the weights are the left operand
    side: Literal["left", "right"] | None  # the operand of the score product whose tokens the values share


def read_contraction(scores: Seed, seed: Seed) -> Contraction | None:
    """A later product, if it multiplies the weights made of `scores` with values; else None."""
    first, second = seed.operands
    for weights, values, left in ((first, second, True), (second, first, False)):
        if bool((marks.seed_of(weights.source) == scores.number).any()):
            return Contraction(seed, weights, values, left, _shared_side(scores, weights, values, left=left))
    return None


def _shared_side(scores: Seed, weights: Operand, values: Operand, *, left: bool) -> Literal["left", "right"] | None:
    rows, columns = pair_tokens(scores, weights.source)
    tokens = marks.one(values.token, -1 if left else -2)
    met = (tokens[:, None, :] if left else tokens[:, :, None]).expand(weights.source.shape)
    sides: tuple[tuple[Literal["left", "right"], Tensor], ...] = (("right", columns), ("left", rows))
    for name, mine in sides:
        known = (mine >= 0) & (met >= 0)
        # The input may differ: keys may come from one, values from another.
        same = (marks.position_of(mine) == marks.position_of(met)) & (marks.example_of(mine) == marks.example_of(met))
        if bool(known.any()) and bool((same | ~known).all()):
            return name
    return None


def features_of(run: Trace, sources: Tensor) -> Tensor:
    """For elements of projections and inputs: which output feature of which of them (-1: none)."""
    found = torch.full_like(sources, UNKNOWN)
    numbers = marks.seed_of(sources)
    for number in numbers.unique().tolist():
        if number >= 0:
            here = numbers == number
            found[here] = (number << 32) + _of_elements(run.seed(number)).reshape(-1)[marks.element_of(sources[here])]
    return found


def features_of_vectors(run: Trace, operand: Operand, dim: int) -> Tensor:
    """[X, n]: for each row (dim -1) or column (dim -2) of an operand, the feature of its first number with a source."""
    sources, tokens = operand.source.movedim(dim, 0), marks.one(operand.token, dim)
    first = sources[0].clone()
    for more in sources[1:]:
        first = torch.where(first < 0, more, first)
    found = features_of(run, first)
    # Learned keys next to those of tokens are not from a head's projection.
    return found.masked_fill(tokens == UNKNOWN, UNKNOWN) if bool((tokens >= 0).any()) else found


def _of_elements(seed: Seed) -> Tensor:
    """The output feature of every element of a projection or input."""
    shape = seed.value.shape
    if seed.left is None or seed.right is None:
        convolved = seed.left is not None and len(shape) > 2
        if convolved and bool((seed.token[:, :1] == seed.token).all()):  # the channels of one position have one token
            return torch.arange(shape[1]).reshape(1, -1, *(1,) * (len(shape) - 2)).expand(shape)
        return torch.arange(shape[-1]).expand(shape) if shape else torch.zeros((), dtype=torch.long)
    x, n, m = shape if len(shape) == 3 else (1, *shape)
    by_rows = seed.left.live or not seed.right.live  # of neither: learned vectors, and the weight is on the right
    live, width, length = (seed.left, m, n) if by_rows else (seed.right, n, m)
    tokens = marks.one(live.token, -1 if by_rows else -2).expand(x, length)
    first = _occurrence(tokens.reshape(-1)).reshape(x, length) * width
    if by_rows:
        return (first[:, :, None] + torch.arange(m)).reshape(shape)
    return (first[:, None, :] + torch.arange(n)[None, :, None]).reshape(shape)


def _occurrence(tokens: Tensor) -> Tensor:
    """How many times each token occurred before: which head it is, if a projection serves heads in turn."""
    order = tokens.argsort(stable=True)
    ordered = tokens[order]
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    place = torch.arange(len(tokens))
    count = place - place.masked_fill(~new, 0).cummax(0).values
    found = torch.empty_like(tokens)
    found[order] = count
    return found.masked_fill(tokens < 0, 0)
