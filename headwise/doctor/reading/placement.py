"""Whether scores and vectors have the layout of attention: what changes along a softmax, and within one product.

A row of the softmax should hold one query of one head and all its keys. One batch element of a product should hold the
vectors of one head of one example, one per token.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Operand, Trace
from headwise.doctor.reading.features import features_of_vectors
from headwise.doctor.reading.marks import MIXED, UNKNOWN
from headwise.doctor.reading.sides import Side, varies


@dataclasses.dataclass(frozen=True)
class Layout:
    """Along a row of the softmax: the share of rows in which each property changes."""

    query_position: float
    query_feature: float
    key_position: float
    key_feature: float
    repeated_keys: float
    examples: float  # of several examples
    other_examples: float  # a query of one example and a key of another
    mixed: float

    @property
    def right(self) -> bool:
        of_several = self.query_position or self.query_feature or self.key_feature or self.other_examples
        return not (of_several or self.repeated_keys or self.mixed)


@dataclasses.dataclass(frozen=True)
class Placement:
    """The vectors of one batch element of a product: they should be of one head and one example, one per token."""

    heads: bool  # there are vectors of several heads
    repeated: bool  # a token occurs several times
    examples: bool  # of several examples
    mixed: bool  # a vector comes from several tokens
    tokens: tuple[int, ...] = ()  # the positions in the first batch, in order

    @property
    def right(self) -> bool:
        return not ((self.heads and self.repeated) or self.examples or self.mixed)


def read_layout(q: Side, k: Side) -> Layout:
    """What changes along a row of the softmax, from the queries and the keys of its scores."""
    both = (q.example >= 0) & (k.example >= 0)
    return Layout(
        query_position=_share(varies(q.token)),
        query_feature=_share(varies(q.feature)),
        key_position=_share(varies(k.token)),
        key_feature=_share(varies(k.feature_of_tokens)),
        repeated_keys=_share(_repeats(k.token)),
        examples=_share(varies(q.example)),
        other_examples=_share((both & (q.example != k.example)).any(-1)),
        mixed=_share((q.token == MIXED).any(-1) | (k.token == MIXED).any(-1)),
    )


def read_placement(run: Trace, operand: Operand, dim: int) -> Placement:
    """The placement of the vectors in an operand, whose numbers are along `dim`."""
    tokens = marks.one(operand.token, dim)
    features = features_of_vectors(run, operand, dim)
    if bool((tokens >= 0).any()):
        features = features.masked_fill(tokens == UNKNOWN, UNKNOWN)
    examples = marks.example_of(tokens)
    grouped = _groups(tokens, features)
    return Placement(
        heads=bool((varies(features) & ~grouped).any()),
        repeated=bool((_repeats(tokens) & ~grouped).any()),
        examples=bool(varies(examples.masked_fill(examples < 0, UNKNOWN)).any()),
        mixed=bool((tokens == MIXED).any()),
        tokens=tuple(marks.position_of(tokens[0]).tolist()),
    )


def _groups(tokens: Tensor, features: Tensor) -> Tensor:
    """[X]: whether several whole heads follow one another, as the queries that share a key head may."""
    found = torch.zeros(len(tokens), dtype=torch.bool)
    for x in range(len(tokens)):
        sets = [tokens[x][features[x] == f].tolist() for f in features[x].unique().tolist()]
        found[x] = (
            len(sets) > 1
            and all(len(set(s)) == len(s) and sorted(s) == sorted(sets[0]) for s in sets)
            and len(sets[0]) > 1
        )
    return found


def _repeats(tokens: Tensor) -> Tensor:
    """[rows]: whether a token occurs several times in a row."""
    ordered = tokens.sort(-1).values
    return ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(-1)


def _share(x: Tensor) -> float:
    return float(x.float().mean()) if x.numel() else 0.0
