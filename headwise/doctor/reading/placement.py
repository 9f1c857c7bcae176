"""Whether scores and vectors have the layout of attention: what changes along a softmax, and within one product.

A row of the softmax should hold one query of one head and all its keys. One batch element of a product should hold the
vectors of one head of one example, one per token. If so, every score has its place (b, h, q, k) in the grid.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Operand, Seed, Trace
from headwise.doctor.reading.marks import MIXED, UNKNOWN
from headwise.doctor.reading.sides import Side, features_of_vectors, varies


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


@dataclasses.dataclass(frozen=True)
class Grid:
    """The standard order of all attentions: the position of every score in a product of queries and keys."""

    element: Tensor  # [B, H, Q, K]: index in the product; -1 if there is no score
    heads: tuple[int, ...]  # the features of the queries' heads, in order
    key_heads: Tensor  # [H]: the feature of the keys that each query head is multiplied with
    key_inputs: Tensor  # [K]: the input that each key comes from


def read_grid(product: Seed, sources: Tensor, q: Side, k: Side, *, queries_left: bool) -> Grid | None:
    """The grid of scores [rows, J] with these sources; None if a query of a head has several rows, or none."""
    feature = q.feature.amax(-1)
    known = q.token.amax(-1) >= 0
    if bool(known.any()):  # learned queries among those of tokens have no position
        example, position = q.example.amax(-1), q.position.amax(-1)
    else:  # learned queries have no example; they take that of their keys
        example = k.example.amax(-1)
        position, known = _learned(example, feature), torch.ones_like(known)
    example, position, feature, sources = example[known], position[known], feature[known], sources[known]
    if bool((example < 0).any()) or bool((position < 0).any()):
        return None
    heads, head = feature.unique(return_inverse=True)
    # Keys: by input and position; constants have no position.
    tokens = k.token[known]
    names = (marks.input_of(tokens) << 20) + k.position[known]
    columns = names[tokens >= 0].unique()
    if not len(columns):
        return None
    at = torch.searchsorted(columns, names.clamp(min=0)).clamp(max=len(columns) - 1)
    elements = marks.element_of(sources)
    n, m = product.value.shape[-2:]
    order = _as_met(columns, names, elements % m if queries_left else elements // m % n)
    columns, at = columns[order], order.argsort()[at]
    valid = (tokens >= 0) & (marks.seed_of(sources) == product.number)
    row = tuple(x[:, None].expand_as(at)[valid] for x in (example, head, position))
    element = torch.full((int(example.max()) + 1, len(heads), int(position.max()) + 1, len(columns)), -1)
    count = torch.zeros_like(element)
    count.index_put_((*row, at[valid]), torch.ones_like(elements[valid]), accumulate=True)
    if int(count.max()) > 1:  # two rows of the softmax for one query of one head
        return None
    element[(*row, at[valid])] = elements[valid]
    key_heads = torch.full((len(heads),), UNKNOWN)
    key_heads[head] = k.feature_of_tokens.amax(-1)[known]
    return Grid(element, tuple(heads.tolist()), key_heads, columns >> 20)


def _as_met(columns: Tensor, names: Tensor, place: Tensor) -> Tensor:
    """The order of the keys in the product: cached keys may come before new ones. In a product of blocks several keys
    have the same place, which then says nothing.
    """
    first = torch.stack([place[names == x].min() for x in columns])
    alone = len(first.unique()) == len(first)
    return first.argsort(stable=True) if alone else torch.arange(len(first))


def _learned(example: Tensor, feature: Tensor) -> Tensor:
    """The positions of learned queries: in the order of their rows, within an example and a head."""
    position = torch.zeros_like(example)
    for b in example.unique().tolist():
        for h in feature.unique().tolist():
            here = (example == b) & (feature == h)
            position[here] = torch.arange(int(here.sum()))
    return position
