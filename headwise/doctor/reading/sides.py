"""The query and the key of each score: token and head of the row and the column of the product that it came from."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Seed, Trace, pair_tokens, row_and_column
from headwise.doctor.reading.features import features_of_vectors
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
    if bool((tokens >= 0).any()):  # learned keys next to those of tokens are not from a head's projection
        features = features.masked_fill(tokens == UNKNOWN, UNKNOWN)
    return Side(tokens, marks.example_of(tokens), marks.position_of(tokens), features)


def varies(x: Tensor) -> Tensor:
    """[rows]: whether a row has more than one known value."""
    high = x.masked_fill(x == UNKNOWN, -(1 << 62)).amax(-1)
    low = x.masked_fill(x == UNKNOWN, 1 << 62).amin(-1)
    return high > low
