"""Whose each score is: the token and the head on its two sides, row and column of the product it came from."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Seed, Trace, pair_tokens, row_and_column
from headwise.doctor.reading.features import features_of_vectors
from headwise.doctor.reading.marks import UNKNOWN


@dataclasses.dataclass(frozen=True)
class Side:
    """Of each score of a softmax, laid out [rows, J]: whose query (or key) it is. -1 = of no token, -2 = of several."""

    token: Tensor
    example: Tensor
    position: Tensor
    feature: Tensor  # which head of which projection: the first number that met there

    @property
    def feature_of_tokens(self) -> Tensor:
        """The features of those that are of tokens; learned keys beside them have features of their own."""
        return self.feature.masked_fill(self.token == UNKNOWN, UNKNOWN)


def read_sides(run: Trace, product: Seed, sources: Tensor) -> tuple[Side, Side]:
    """Of scores with these sources: whose the rows of the product are, and whose its columns."""
    left, right = product.left, product.right
    assert left is not None
    assert right is not None
    elements = marks.element_of(sources).clamp(min=0)
    row, column = row_and_column(elements, left.value.shape[-2], right.value.shape[-1])
    features = (
        features_of_vectors(run, left, -1).reshape(-1)[row],
        features_of_vectors(run, right, -2).reshape(-1)[column],
    )
    outside = marks.seed_of(sources) != product.number
    first, second = (
        _side(tokens, of_heads.masked_fill(outside, UNKNOWN))
        for tokens, of_heads in zip(pair_tokens(product, sources), features, strict=True)
    )
    return first, second


def _side(tokens: Tensor, features: Tensor) -> Side:
    if bool((tokens >= 0).any()):  # learned keys beside those of tokens are of no head's projection
        features = features.masked_fill(tokens == UNKNOWN, UNKNOWN)
    return Side(tokens, marks.example_of(tokens), marks.position_of(tokens), features)


def varies(x: Tensor) -> Tensor:
    """[rows]: whether more than one known value stands in a row."""
    high = x.masked_fill(x == UNKNOWN, -(1 << 62)).amax(-1)
    low = x.masked_fill(x == UNKNOWN, 1 << 62).amin(-1)
    return high > low
