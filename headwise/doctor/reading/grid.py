"""The standard order of all attentions: the position of every score (b, h, q, k) in a product of queries and keys."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Seed
from headwise.doctor.reading.marks import UNKNOWN
from headwise.doctor.reading.sides import Side


@dataclasses.dataclass(frozen=True)
class Grid:
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
