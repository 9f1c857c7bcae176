"""One attention that a model computes in pieces: blocks, windows, chunks, some queries or heads at a time.

Each piece is read as cells: (which query, which key, score, weight). Queries and keys are told by the numbers that they
have in the tensors that they come from (tape.py), so that the pieces of one attention meet in one call, whose mask says
which keys each query saw.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.call import AttentionCall, Scores, make_call
from headwise.capture.layout import read_layout
from headwise.capture.masks import Recognised
from headwise.capture.tape import Node, Places, Product
from headwise.capture.verify import wrong_weights
from headwise.errors import RecordError
from headwise.masks.additive import FORBIDS
from headwise.records import AttentionRecord

_TWICE = "a query attends in several softmaxes, or a softmax has several queries: no one softmax gives these weights"
_NO_KEY = "a query attends to columns that come from no key, such as padding"
_CHANGED = "its weights were changed after the softmax"
_LOST = "its weights could not be followed from the softmax to the values"
_ELSEWHERE = "its weights meet values of other positions or heads than those of their keys"
_UNMET = "some weights of its softmax meet no values"
_FORMS = "its queries and keys come from tensors of different forms"


class Meeting(NamedTuple):
    """A product of weights and values, as an einsum."""

    weights: Tensor
    node: Node | None
    values: Node | None
    letters: tuple[str, str]


class Cells(NamedTuple):
    """The scores of a softmax, in whatever arrangement."""

    scores: Tensor
    node: Node | None
    dim: int  # of the softmax


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some cells of an attention. A query or key has the number of its first element in its origin."""

    rows: Tensor  # [R], the numbers of its queries; 0 = padding
    q: Tensor  # [R, D]
    keys: Tensor  # [C]
    k: Tensor  # [C, D]
    row: Tensor  # [cells], the number of each cell's query; only cells that are not masked
    col: Tensor  # [cells], of its key
    softmax: Tensor  # [cells], which row of the softmax it is in
    scores: Tensor  # [cells]
    weights: Tensor  # [cells], those that the model used
    met: Tensor  # bool [cells], whether they have met values
    scale: float
    dtype: torch.dtype  # of the scores


def read_cells(
    cells: Cells, meeting: Meeting, sources: Places, scale: float, dtype: torch.dtype
) -> tuple[Piece, Callable[[Meeting], None]]:
    """(the piece of a softmax, what to tell when other parts of its weights meet values).

    `sources` numbers the elements that queries, keys and values come from.
    """
    places = Places(products=True)
    at, used_at = places.of(cells.node), places.of(meeting.node)
    if at is None or used_at is None:
        raise RecordError(_LOST)
    at = at.movedim(cells.dim, -1).flatten(0, -2)
    scores = cells.scores.movedim(cells.dim, -1).flatten(0, -2).float()
    top = scores.amax(-1, keepdim=True)
    allowed = (scores - top > FORBIDS) & (top > FORBIDS)
    own = scores.softmax(-1)[allowed]
    which, scores, at = allowed.nonzero()[:, 0], scores[allowed], at[allowed]
    theirs = torch.full((places.count + 1,), torch.nan)
    theirs[used_at.flatten()] = meeting.weights.float().flatten()
    theirs = theirs[at]
    met = ~theirs.isnan()
    theirs = own if _dropped(meeting.node) else torch.where(met, theirs, own)
    row, col, parts = torch.zeros_like(at), torch.zeros_like(at), []
    for node, before in places.origins:
        assert isinstance(node, Product)
        here = (at > before) & (at <= before + node.shape.numel())
        if not bool(here.any()):
            continue
        rows, keys = sides(node, sources)
        coordinates = _at_home(node, torch.unravel_index(at[here] - before - 1, node.shape))
        row[here] = rows[(*coordinates[:-2], coordinates[-2])]
        col[here] = keys[(*coordinates[:-2], coordinates[-1])]
        trail = node.trail
        assert trail.q is not None
        assert trail.k is not None
        q, k = (x.expand(*trail.lead, *x.shape[-2:]).flatten(0, -2) for x in (trail.q, trail.k))
        parts.append((rows.flatten(), q, keys.flatten(), k))
    # Rows of padding are nobody's; what the model set to 0 after the softmax attends to nothing.
    none = torch.zeros(len(allowed), dtype=torch.bool)
    zeroed = none.index_fill(0, which[met & (own > 0)], True) & ~none.index_fill(0, which[met & (theirs != 0)], True)
    real = ~zeroed[which] & (row > 0)
    if not parts or bool(((col == 0) & real).any()):
        raise RecordError(_NO_KEY)
    if bool((((theirs - own).abs() > 1e-6 + 4 * torch.finfo(dtype).eps * own) & real).any()):
        raise RecordError(_CHANGED)
    rows, q, keys, k = (torch.cat(each) for each in zip(*parts, strict=True))
    at, met, col = at[real], met[real], col[real]
    _check_values(meeting, used_at, at, col, sources, places.count)

    def meet(meeting: Meeting) -> None:
        used_at = places.of(meeting.node)
        there = torch.zeros(places.count + 1, dtype=torch.bool)
        if used_at is not None:
            there[used_at.flatten()] = True
            _check_values(meeting, used_at, at, col, sources, places.count)
        met.logical_or_(there[at])

    found = row[real], col, which[real], scores[real], theirs[real], met
    return Piece(rows, q, keys, k, *found, scale, dtype), meet


def _check_values(meeting: Meeting, used_at: Tensor, at: Tensor, col: Tensor, sources: Places, count: int) -> None:
    """RecordError unless the weight of each key meets the value of the same position and head."""
    (one, two), numbers = meeting.letters, sources.of(meeting.values)
    if numbers is None or not one:
        raise RecordError(_LOST)
    numbers = numbers.amin([i for i, letter in enumerate(two) if letter not in one])
    two = "".join(letter for letter in two if letter in one)
    order = [letter for letter in one if letter in two]
    numbers = numbers.permute([two.index(letter) for letter in order])
    for i, letter in enumerate(one):
        if letter not in two:
            numbers = numbers.unsqueeze(i)
    value_of = torch.zeros(count + 1, dtype=torch.long)
    value_of[used_at.flatten()] = numbers.expand(used_at.shape).flatten()
    value_of[0] = 0
    value, col = value_of[at], col.clone()
    col[value == 0] = 0  # meets values elsewhere
    origins = [_Origin(node.shape, before) for node, before in sources.origins]
    for of_value in _origins(value, origins):
        mine = of_value.holds(value)
        for of_key in _origins(col[mine], origins):
            here = mine & of_key.holds(col)
            (*a, head), (*b, channel) = of_key.coordinates(col[here]), of_value.coordinates(value[here])
            if of_key.shape[:-1] != of_value.shape[:-1] or not all(map(torch.equal, a, b)):
                raise RecordError(_ELSEWHERE)
            pairs = torch.stack([head, channel]).unique(dim=1)  # the heads of both, in the same order
            if pairs.shape[1] != len(pairs[0].unique()) or bool((pairs[1].diff() < 0).any()):
                raise RecordError(_ELSEWHERE)


def read_call(call: Scores, rows: Tensor, keys: Tensor, dtype: torch.dtype) -> Piece:
    """The piece of a call, whose queries [B, H, Q] and keys [B, H, K] have these numbers."""
    record = AttentionRecord(call)
    scores, weights = record.scores(), record.weights()
    b, h, r, c = (scores > -torch.inf).nonzero().unbind(-1)
    q, k = call.q.flatten(0, 2), call.k.repeat_interleave(call.heads_per_key_head, 1).flatten(0, 2)
    softmax = (b * rows.shape[1] + h) * rows.shape[2] + r
    found = scores[b, h, r, c], weights[b, h, r, c], torch.ones_like(b, dtype=torch.bool), call.scale
    return Piece(rows.flatten(), q, keys.flatten(), k, rows[b, h, r], keys[b, h, c], softmax, *found, dtype)


def sides(node: Product, sources: Places) -> tuple[Tensor, Tensor]:
    """The numbers of the queries [*lead, Q] and keys [*lead, K] of a product."""
    factors = [sources.of(part) for _, part in node.factors]
    filled = [
        torch.zeros(shape, dtype=torch.long) if each is None else each
        for each, (shape, _) in zip(factors, node.factors, strict=True)
    ]
    trail = node.arrange(filled)
    if trail is None or trail.q is None or trail.k is None:
        raise RecordError("its product could not be read a second time")
    lead = node.trail.lead
    one, two = (number_of(x).expand(*lead, x.shape[-2]) for x in (trail.q, trail.k))
    return one, two


def number_of(vectors: Tensor) -> Tensor:
    """The number of each vector [..., n, D], the smallest of its elements': rotations exchange these."""
    return vectors.amin(-1)


def _at_home(node: Product, coordinates: Sequence[Tensor]) -> list[Tensor]:
    """The coordinates of elements of a product in the order (*lead, Q, K)."""
    order = node.trail.order
    return list(coordinates) if order is None else [coordinates[order.index(i)] for i in range(len(order))]


def _dropped(node: Node | None) -> bool:
    """Whether a node is reached through dropout."""
    while node is not None and node.parts:
        if node.name == "dropout":
            return True
        node = next((part for _, part in node.parts if part is not None), None)
    return False


class _Origin(NamedTuple):
    shape: torch.Size
    before: int

    def coordinates(self, numbers: Tensor) -> list[Tensor]:
        return list(torch.unravel_index(numbers - self.before - 1, self.shape))

    def holds(self, numbers: Tensor) -> Tensor:
        return (numbers > self.before) & (numbers <= self.before + self.shape.numel())


@dataclasses.dataclass
class _Side:
    """Where queries or keys stand: of each number, its coordinates but the last, its head and its position."""

    lead: list[Tensor]
    head: Tensor
    heads: int
    position: Tensor
    length: int


class Merged(NamedTuple):
    """All pieces as one call."""

    call: AttentionCall
    positions: tuple[int, ...] | None  # those of its rows; None = they are all


def merge(pieces: Sequence[Piece], sources: Places, heads: int | None, recognised: Recognised) -> Merged:
    """The pieces of one attention as one call. RecordError where no call says what they did."""
    origins = [_Origin(node.shape, before) for node, before in sources.origins]
    row, col, scores, weights = (
        torch.cat([getattr(piece, name) for piece in pieces]) for name in ("row", "col", "scores", "weights")
    )
    rows, keys = (torch.cat([getattr(piece, name) for piece in pieces]) for name in ("rows", "keys"))
    _check_rows(pieces, sources.count)
    if any(bool((~piece.met & (piece.weights > 1e-6)).any()) for piece in pieces):
        raise RecordError(_UNMET)
    of_rows, of_keys = _origins(rows, origins), _origins(col, origins)
    if len(of_rows) != 1 or any(len(each.shape) != len(of_rows[0].shape) for each in of_keys):
        raise RecordError(_FORMS)
    shared, single = _shared(of_rows[0], of_keys, row, col, keys)
    present = rows > 0
    q_at, k_at = (_side(each, of, shared) for each, of in ((rows, of_rows), (keys, of_keys)))
    row_at, col_at = (_side(each, of, shared, like) for each, of, like in ((row, of_rows, rows), (col, of_keys, keys)))
    size, there = [], _held(keys, of_keys)
    for dim, of_q, of_row, of_k, of_col in zip(shared, q_at.lead, row_at.lead, k_at.lead, col_at.lead, strict=True):
        examples = of_q[present].unique()  # some may be absent: they are numbered again
        size.append(len(examples))
        if dim in single:
            of_k.zero_()
        else:
            there &= torch.isin(of_k, examples)
        for each in (of_q, of_row) if dim in single else (of_q, of_row, of_k, of_col):
            each.copy_(torch.searchsorted(examples, each.contiguous()).clamp(max=len(examples) - 1))
    if len(shared) > 1 and q_at.heads > 1:  # heads are a dimension already: these are parts of their channels
        raise RecordError(_FORMS)
    if q_at.heads % k_at.heads or bool((row_at.head * k_at.heads // q_at.heads != col_at.head).any()):
        raise RecordError(_FORMS)
    positions = q_at.position[present].unique()
    some = len(positions) < q_at.length
    if some:
        renumbered = torch.zeros(q_at.length, dtype=torch.long)
        renumbered[positions] = torch.arange(len(positions))
        q_at.position, row_at.position = renumbered[q_at.position], renumbered[row_at.position]
        q_at.length = len(positions)
    q = _filled(torch.cat([piece.q for piece in pieces]), q_at, size, present)
    k_size = [1 if dim in single else n for dim, n in zip(shared, size, strict=True)]
    k = _filled(torch.cat([piece.k for piece in pieces]), k_at, k_size, there)
    k = k.expand(*size, *k.shape[len(size) :]).repeat_interleave(q_at.heads // k_at.heads, -3)
    lead = (*size, q_at.heads) if q_at.heads > 1 or not size else tuple(size)
    q, k = (x.reshape(*lead, *x.shape[-2:]) for x in (q, k))
    layout = read_layout(lead, heads)
    n = math.prod(lead)
    which = _ravel([*row_at.lead, row_at.head], [*size, q_at.heads])
    cell = row_at.position * k_at.length + col_at.position
    allowed = torch.zeros(n, q_at.length * k_at.length, dtype=torch.bool)
    allowed[which, cell] = True
    if int(allowed.sum()) != len(cell):
        which, cell, scores, weights = _once(which, cell, scores, weights, allowed.shape)
    rest, scale = _rest(pieces, q.flatten(0, -3), k.flatten(0, -3), which, cell, scores)
    shape = (*lead, q_at.length, k_at.length)
    q, k = layout.fold(q), layout.fold(k)
    bias = None
    if rest is not None:
        bias = torch.zeros(n, q_at.length * k_at.length)
        bias[which, cell] = rest
        bias = layout.fold(bias.view(shape))
        for dim in (0, 1):
            first = bias.narrow(dim, 0, 1)
            bias = first if torch.equal(bias, first.expand_as(bias)) else bias
    allowed = layout.fold(allowed.view(shape))
    mask = None if bool(allowed.all()) else recognised.mask(allowed, (*q.shape[:3], k.shape[2]))[0]
    with torch.autocast(q.device.type, enabled=False):
        call = make_call(q, k, k[..., :1], mask=mask, bias=bias, scale=scale)

    def of_rows_of(chosen: list[int]) -> Tensor:
        wanted = torch.full((q_at.length,), -1)
        wanted[chosen] = torch.arange(len(chosen))
        here = wanted[cell // k_at.length]
        found = torch.zeros(n, len(chosen), k_at.length)
        some = here >= 0
        found[which[some], here[some], cell[some] % k_at.length] = weights[some]
        return layout.fold(found.view(*lead, len(chosen), k_at.length))

    wrong = wrong_weights(call, of_rows_of, pieces[0].dtype)
    if wrong is not None:
        raise RecordError(wrong)
    return Merged(call, tuple(positions.tolist()) if some else None)


def _check_rows(pieces: Sequence[Piece], count: int) -> None:
    """RecordError unless each query is in one row of one softmax, and each such row is of one query."""
    softmax_of, first = torch.full((count + 1,), -1), 0
    for piece in pieces:
        row_of = torch.zeros(int(piece.softmax.max()) + 1 if len(piece.softmax) else 0, dtype=torch.long)
        row_of[piece.softmax] = piece.row
        if bool((softmax_of[piece.row] >= 0).any()) or not torch.equal(row_of[piece.softmax], piece.row):
            raise RecordError(_TWICE)
        softmax_of[piece.row] = piece.softmax + first
        if not torch.equal(softmax_of[piece.row], piece.softmax + first):
            raise RecordError(_TWICE)
        first += len(row_of)


def _once(which: Tensor, cell: Tensor, scores: Tensor, weights: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """The cells with each key once. If a softmax has it m times it counts m times: its score grows by log m."""
    at, once = (which * shape[1] + cell).unique(return_inverse=True)
    top = torch.full(at.shape, -torch.inf).scatter_reduce(0, once, scores, "amax")
    total = torch.zeros(at.shape).index_add(0, once, (scores - top[once]).exp())
    weights = torch.zeros(at.shape).index_add(0, once, weights)
    return at // shape[1], at % shape[1], top + total.log(), weights


def _origins(numbers: Tensor, origins: Sequence[_Origin]) -> list[_Origin]:
    return [each for each in origins if bool(each.holds(numbers).any())]


def _held(numbers: Tensor, origins: Sequence[_Origin]) -> Tensor:
    return torch.stack([each.holds(numbers) for each in origins]).any(0)


def _shared(
    of_rows: _Origin, of_keys: Sequence[_Origin], row: Tensor, col: Tensor, keys: Tensor
) -> tuple[list[int], list[int]]:
    """The dimensions in which each query has the place of its keys: examples, heads, not positions.

    And those of them in which there is one place of keys for all queries, as one head of keys.
    """
    dims = range(len(of_rows.shape) - 1)
    shared, single = set(dims), set(dims)
    for each in of_keys:
        here = each.holds(col)
        one, two = of_rows.coordinates(row[here]), each.coordinates(col[here])
        every = each.coordinates(keys[each.holds(keys)])
        shared &= {d for d in dims if of_rows.shape[d] == each.shape[d] and torch.equal(one[d], two[d])}
        single &= {d for d in dims if each.shape[d] > 1 and bool((every[d] == every[d][:1]).all())}
    single -= shared
    if set(dims) == shared | single:  # else there would be no positions
        single = set()
    return sorted(shared | single), sorted(single)


def _side(numbers: Tensor, origins: Sequence[_Origin], shared: Sequence[int], like: Tensor | None = None) -> _Side:
    """Where queries or keys stand. `like`: the numbers of all, among which heads are counted; None = these."""
    zeros = torch.zeros_like(numbers)
    found = _Side([zeros.clone() for _ in shared], zeros.clone(), 0, zeros.clone(), 0)
    for each in origins:
        here = each.holds(numbers)
        all_ = numbers if like is None else like
        channels = each.coordinates(all_[each.holds(all_)])[-1].unique()
        if found.heads not in (0, len(channels)):
            raise RecordError(_FORMS)
        found.heads = len(channels)
        coordinates = each.coordinates(numbers[here])
        for at, dim in enumerate(shared):
            found.lead[at][here] = coordinates[dim]
        found.head[here] = torch.searchsorted(channels, coordinates[-1].contiguous())
        rest = [dim for dim in range(len(each.shape) - 1) if dim not in shared]
        sizes = [each.shape[dim] for dim in rest]
        found.position[here] = _ravel([coordinates[dim] for dim in rest], sizes, len(coordinates[-1])) + found.length
        found.length += math.prod(sizes)
    return found


def _ravel(coordinates: Sequence[Tensor], sizes: Sequence[int], n: int = 0) -> Tensor:
    found = torch.zeros(n, dtype=torch.long) if not coordinates else torch.zeros_like(coordinates[0])
    for each, size in zip(coordinates, sizes, strict=True):
        found = found * size + each
    return found


def _filled(vectors: Tensor, at: _Side, size: Sequence[int], real: Tensor) -> Tensor:
    """[*size, heads, length, D] with the vectors where they belong."""
    where = _ravel([*at.lead, at.head, at.position], [*size, at.heads, at.length])
    found = vectors.new_zeros(math.prod(size) * at.heads * at.length, vectors.shape[-1])
    found[where[real]] = vectors[real]
    return found.view(*size, at.heads, at.length, -1)


def _rest(
    pieces: Sequence[Piece], q: Tensor, k: Tensor, which: Tensor, cell: Tensor, scores: Tensor
) -> tuple[Tensor | None, float]:
    """(what the scores of the cells have beside scale · q kᵀ, None for nothing; the scale).

    One number more or less for a row makes no difference. The scale is that of the pieces, or else the one that fits.
    """
    product = torch.empty_like(scores)
    for i in range(len(q)):
        here = (which == i).nonzero()[:, 0]
        product[here] = (q[i].float() @ k[i].float().mT).flatten()[cell[here]]
    rows = which * q.shape[1] + cell // k.shape[1]
    scores, product = (_centred(x, rows, q.shape[0] * q.shape[1]) for x in (scores, product))
    size = scores.abs()
    allowed = 16 * torch.finfo(pieces[0].dtype).eps * (1 + size.max() if len(size) else size.sum())
    norm = float((product * product).sum())
    for scale in (pieces[0].scale, float((product * scores).sum()) / norm if norm else 0.0):
        if bool(((scores - scale * product).abs() <= allowed).all()):
            return None, scale
    return scores - pieces[0].scale * product, pieces[0].scale


def _centred(x: Tensor, rows: Tensor, n: int) -> Tensor:
    """Without the mean of each row."""
    sums, counts = torch.zeros(n).index_add(0, rows, x), torch.zeros(n).index_add(0, rows, torch.ones_like(x))
    return x - (sums / counts.clamp(min=1))[rows]
