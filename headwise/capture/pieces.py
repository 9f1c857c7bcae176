"""Reads an attention that a model computes in pieces: blocks, windows, chunks, some queries or heads at a time.

A piece is one softmax. It is read as rows: to which query each row belongs, and to which key each score belongs. The
elements of the tensors from which queries and keys come are numbered (tape.py), and these numbers identify queries and
keys. So the pieces of one attention can be merged into one call, whose mask says which keys each query saw.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.call import Scores
from headwise.capture.tape import Node, Origin, Places, Product
from headwise.errors import RecordError
from headwise.masks.additive import FORBIDS
from headwise.records import AttentionRecord
from headwise.softmax import attention_weights

TWICE = "a query attends in several softmaxes, or a softmax has several queries: no one softmax gives these weights"
_NO_KEY = "a query attends to columns that come from no key, such as padding"
_CHANGED = "its weights were changed after the softmax"
_LOST = "its weights could not be followed from the softmax to the values"
_ELSEWHERE = "its weights meet values of other positions or heads than those of their keys"
# The number of weights for which the position of the value that each one multiplies is checked.
SAMPLE = 2**20


class Meeting(NamedTuple):
    """A product of weights and values: the weights, the nodes (origins) of both factors, and their einsum letters."""

    weights: Tensor
    node: Node | None
    values: Node | None
    letters: tuple[str, str]


class Cells(NamedTuple):
    """The scores that a softmax got, with their dimensions in any order, and the dimension of the softmax."""

    scores: Tensor
    node: Node | None
    dim: int  # of the softmax


@dataclasses.dataclass(frozen=True)
class Side:
    """The queries or the keys of one product, [L, n]: in each of L groups, every query has a score with every key."""

    numbers: Tensor  # [L, n], for each vector, the number of its first element (tape.py); 0 = padding
    vectors: Tensor  # [L, n, D]

    @property
    def count(self) -> int:
        """The number of queries or keys, L · n."""
        return self.numbers.numel()


Rows = tuple[Tensor, Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One softmax of an attention that is computed in several softmaxes, read as rows of queries."""

    sides: list[tuple[Side, Side]]  # (queries, keys) of each product that its scores come from
    row: Tensor  # [S], the index of each row's query among the queries of all products
    rows: Callable[[Tensor], Rows]  # for some rows: 1 + the index of each column's key, 0 = masked; scores; weights
    is_used: Callable[[], bool]  # whether all weights were multiplied with values
    scale: float
    dtype: torch.dtype  # the dtype of the scores
    sinks: Tensor | None = None  # [H], a learned score beside the keys


def read_cells(
    cells: Cells, meeting: Meeting, sources: Places, scale: float, dtype: torch.dtype
) -> tuple[Piece, Callable[[Meeting], None]]:
    """Return (a softmax as a piece, a function to call when other parts of its weights are multiplied with values).

    `sources` numbers the elements of the tensors from which queries, keys and values come.
    """
    places = Places(products=True)
    found, used = places.of(cells.node), places.of(meeting.node)
    if found is None or used is None:
        raise RecordError(_LOST)
    work = torch.promote_types(cells.scores.dtype, torch.float32)
    scores, at = (x.movedim(cells.dim, -1).flatten(0, -2) for x in (cells.scores.to(work), found))
    top = scores.amax(-1, keepdim=True)
    allowed = (scores - top > FORBIDS) & (top > FORBIDS)
    outside = (allowed & (at == 0)).any(-1)
    at = at.masked_fill(~allowed, 0)
    found_in = [_In(each.node, each, sources) for each in places.origins if isinstance(each.node, Product)]
    row, col, sides_ = torch.zeros_like(at), torch.zeros_like(at), list[tuple[Side, Side]]()
    for each in found_in:
        here = each.holds(at)
        if bool(here.any()):
            of_row, of_col = each.coordinates(at)
            rows, keys = (sum(side[i].count for side in sides_) for i in (0, 1))
            row, col = torch.where(here, of_row + rows, row), torch.where(here, of_col + (keys + 1), col)
            sides_.append(each.sides)
    if not sides_:
        raise RecordError(_NO_KEY)
    numbers, key_numbers = (torch.cat([each[i].numbers.flatten() for each in sides_]) for i in (0, 1))
    first = (col > 0).to(torch.uint8).argmax(-1, keepdim=True)
    own_row = row.gather(-1, first)
    same = (row == own_row) | (col == 0)
    if not bool(same.all()):  # overlapping blocks have a query twice
        same |= numbers[row] == numbers[own_row]
    if not bool(same.all()):
        raise RecordError(TWICE)
    # Rows of padding belong to no query; rows that the model set to 0 after the softmax attend to nothing.
    weights = attention_weights(scores)
    theirs = scores.new_full((places.count + 1,), torch.nan)
    theirs[used.flatten()] = meeting.weights.to(work).flatten()
    theirs[0] = torch.nan
    theirs = theirs[at]
    met = ~theirs.isnan()
    changed = (theirs - weights).abs() > 1e-6 + 4 * torch.finfo(dtype).eps * weights
    zeroed = at.new_zeros(len(at), dtype=torch.bool)
    if _dropped(meeting.node):
        changed = zeroed[:, None]
    else:
        zeroed = (met & (weights > 0)).any(-1) & ~(met & (theirs != 0)).any(-1)
        weights = torch.where(met, theirs, weights)
    real = (col > 0).any(-1) & (numbers[own_row[:, 0]] > 0) & ~zeroed
    padding = key_numbers == 0
    if bool(padding.any()):
        outside |= torch.nn.functional.pad(padding, (1, 0))[col].any(-1)
    if bool((outside & real).any()):
        raise RecordError(_NO_KEY)
    if bool((changed.any(-1) & real).any()):
        raise RecordError(_CHANGED)
    if not bool(real.all()):
        own_row, col, scores, weights, met, at = (x[real] for x in (own_row, col, scores, weights, met, at))
    _check_values(meeting, used, found_in, sources)

    def meet(meeting: Meeting) -> None:
        used = places.of(meeting.node)
        if used is not None:
            there = used.new_zeros(places.count + 1, dtype=torch.bool)
            there[used.flatten()] = True
            met.logical_or_(there[at])
            _check_values(meeting, used, found_in, sources)

    def read_rows(index: Tensor) -> Rows:
        return col[index], scores[index], weights[index]

    def is_used() -> bool:
        return not bool((~met & (weights > 1e-6) & (col > 0)).any())

    return Piece(sides_, own_row[:, 0], read_rows, is_used, scale, dtype), meet


class _In:
    """One product of queries and keys whose elements (scores) are numbered: finds the query and key of each number."""

    def __init__(self, node: Product, origin: Origin, sources: Places) -> None:
        self._node, self._before, self._sources, self.holds = node, origin.before, sources, origin.holds
        trail = node.trail
        home = [*trail.lead, trail.rows, trail.keys]
        order = trail.order or tuple(range(len(home)))
        if len(node.shape) < len(home):  # each query has keys of its own: the single row of each query is no dimension
            order = (*order[:-2], order[-1])
        self._steps = []  # for each dimension: (elements to the next, size, rows to the next, keys to the next)
        row, key = _strides([*home[:-1], 1]), _strides([*home[:-2], 1, home[-1]])
        for size, stride, at in zip(node.shape, _strides(node.shape), order, strict=True):
            of_row, of_key = (0 if at == gone else x[at] for x, gone in ((row, len(home) - 1), (key, len(home) - 2)))
            self._steps.append((stride, size, of_row, of_key))

    @functools.cached_property
    def sides(self) -> tuple[Side, Side]:
        """The queries and the keys of the product q kᵀ."""
        return sides(self._node, self._sources)

    def coordinates(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for each number in `at`, the index of its query and the index of its key, as `sides` orders them."""
        at = at - (self._before + 1)
        row, key = torch.zeros_like(at), torch.zeros_like(at)
        for stride, size, of_row, of_key in self._steps:
            if size > 1:
                own = at // stride % size
                row = row + own * of_row if of_row else row
                key = key + own * of_key if of_key else key
        return row, key


def _strides(sizes: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor: for each dimension, the elements from one index to the next."""
    return [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]


def _check_values(meeting: Meeting, used: Tensor, found_in: Sequence[_In], sources: Places) -> None:
    """Raise RecordError unless the weight of each key is multiplied with the value of the same position and head."""
    (one, two), numbers = meeting.letters, sources.of(meeting.values)
    if numbers is None or not one:
        raise RecordError(_LOST)
    numbers = numbers.amin([i for i, letter in enumerate(two) if letter not in one])
    two = "".join(letter for letter in two if letter in one)
    numbers = numbers.permute([two.index(letter) for letter in one if letter in two])
    for i, letter in enumerate(one):
        if letter not in two:
            numbers = numbers.unsqueeze(i)
    numbers, used = numbers.expand(used.shape).flatten(), used.flatten()
    step = max(1, -(-len(used) // SAMPLE))
    used, numbers = used[::step], numbers[::step]
    origins = sources.origins
    for each in found_in:
        here = each.holds(used) & (numbers > 0)
        if not bool(here.any()):
            continue
        key, value = each.sides[1].numbers.flatten()[each.coordinates(used[here])[1]], numbers[here]
        value, key = value[key > 0], key[key > 0]
        for of_value in held_by(value, origins):
            for of_key in held_by(key[of_value.holds(value)], origins):
                both = of_value.holds(value) & of_key.holds(key)
                (*a, head), (*b, channel) = of_key.coordinates(key[both]), of_value.coordinates(value[both])
                if of_key.shape[:-1] != of_value.shape[:-1] or not all(map(torch.equal, a, b)):
                    raise RecordError(_ELSEWHERE)
                pairs = _pairs(head, channel)
                if pairs.shape[1] != len(pairs[0].unique()) or bool((pairs[1].diff() < 0).any()):
                    raise RecordError(_ELSEWHERE)  # the heads of both are not in the same order


def _pairs(a: Tensor, b: Tensor) -> Tensor:
    """Return the distinct pairs of two lists, sorted: the same as `unique(dim=1)`, in a thousandth of the time."""
    width = int(b.max()) + 1
    both = (a.long() * width + b).unique()
    return torch.stack([both // width, both % width])


def read_call(call: Scores, rows: Tensor, keys: Tensor, dtype: torch.dtype) -> Piece:
    """Read a whole call as a piece. `rows` [B, H, Q] and `keys` [B, H, K] number its queries and keys (see tape.py)."""
    record, (q_len, k_len) = AttentionRecord(call), call.shape[2:]
    k = call.k.repeat_interleave(call.heads_per_key_head, 1)
    of_q, of_k = (Side(x.flatten(0, 1), y.flatten(0, 1)) for x, y in ((rows, call.q), (keys, k)))

    def read_rows(index: Tensor) -> Rows:
        found = []
        for i in (index // q_len).unique().tolist():
            example, head = divmod(i, rows.shape[1])
            some = (index[index // q_len == i] % q_len).tolist()
            scores, weights = (x(rows=some, heads=[head])[example, 0] for x in (record.scores, record.weights))
            col = torch.arange(i * k_len + 1, (i + 1) * k_len + 1, device=scores.device).expand_as(scores)
            found.append((col.masked_fill(scores == -torch.inf, 0), scores, weights))
        col, scores, weights = (torch.cat(parts) for parts in zip(*found, strict=True))
        return col, scores, weights

    row = torch.arange(of_q.count, device=call.q.device)
    return Piece([(of_q, of_k)], row, read_rows, lambda: True, call.scale, dtype, call.sinks)


def sides(node: Product, sources: Places) -> tuple[Side, Side]:
    """Return the queries and the keys of a product q kᵀ, with the numbers that `sources` gives to their elements."""
    trail, lead = node.arrange(sources.of_all(node.factors, node.device)), node.trail.lead
    if trail is None or trail.q is None or trail.k is None or node.trail.q is None or node.trail.k is None:
        raise RecordError("its product could not be read a second time")
    one, two = (
        Side(
            number_vectors(x).expand(*lead, x.shape[-2]).reshape(-1, x.shape[-2]),
            y.expand(*lead, *y.shape[-2:]).reshape(-1, *y.shape[-2:]),
        )
        for x, y in ((trail.q, node.trail.q), (trail.k, node.trail.k))
    )
    return one, two


def number_vectors(vectors: Tensor) -> Tensor:
    """Return a number for each vector [..., n, D]: its elements' smallest number, as rotations exchange elements."""
    return vectors.amin(-1)


def _dropped(node: Node | None) -> bool:
    """Return whether a tensor, given by its node (how it was made), comes from a dropout."""
    while node is not None and node.parts:
        if node.name == "dropout":
            return True
        node = next((part for _, part in node.parts if part is not None), None)
    return False


def held_by(numbers: Tensor, origins: Sequence[Origin]) -> list[Origin]:
    """Return the origins (tensors that are not followed further back) that contain elements with these numbers."""
    return [each for each in origins if bool(each.holds(numbers).any())]
