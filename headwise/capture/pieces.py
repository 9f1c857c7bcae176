"""One attention that a model computes in pieces: blocks, windows, chunks, some queries or heads at a time.

Each piece is read as the rows of its softmax: of which query, and of which key each score is. Queries and keys are told
by the numbers that they have in the tensors that they come from (tape.py), so that the pieces of one attention meet in
one call, whose mask says which keys each query saw.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
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
# So many of the weights are compared with the positions of the values that they meet.
SAMPLE = 2**20


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
class Side:
    """The queries or the keys of one product, [L, n]: within each of L groups all queries meet all keys."""

    numbers: Tensor  # [L, n], which element of its origin each begins with; 0 = padding
    vectors: Tensor  # [L, n, D]

    @property
    def count(self) -> int:
        """How many there are."""
        return self.numbers.numel()


Rows = tuple[Tensor, Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Piece:
    """The rows of a softmax."""

    sides: list[tuple[Side, Side]]  # (queries, keys) of each product that its scores come from
    row: Tensor  # [S], the place of each row's query among those of all products
    rows: Callable[[Tensor], Rows]  # of some rows: 1 + the place of each column's key, 0 = masked; scores; weights
    is_used: Callable[[], bool]  # whether all weights have met values
    scale: float
    dtype: torch.dtype  # of the scores


def read_cells(
    cells: Cells, meeting: Meeting, sources: Places, scale: float, dtype: torch.dtype
) -> tuple[Piece, Callable[[Meeting], None]]:
    """(the piece of a softmax, what to tell when other parts of its weights meet values).

    `sources` numbers the elements that queries, keys and values come from.
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
    found_in = [_In(node, before, sources) for node, before in places.origins if isinstance(node, Product)]
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
        raise RecordError(_TWICE)
    # Rows of padding are nobody's; what the model set to 0 after the softmax attends to nothing.
    weights = scores.softmax(-1)
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

    def rows_of(index: Tensor) -> Rows:
        return col[index], scores[index], weights[index]

    def is_used() -> bool:
        return not bool((~met & (weights > 1e-6) & (col > 0)).any())

    return Piece(sides_, own_row[:, 0], rows_of, is_used, scale, dtype), meet


class _In:
    """The product of queries and keys whose elements have the numbers after `before`."""

    def __init__(self, node: Product, before: int, sources: Places) -> None:
        self._node, self._before, self._sources = node, before, sources
        trail = node.trail
        home = [*trail.lead, trail.rows, trail.keys]
        order = trail.order or tuple(range(len(home)))
        self._steps = []  # of each dimension: (elements to the next, size, rows to the next, keys to the next)
        row, key = _strides([*home[:-1], 1]), _strides([*home[:-2], 1, home[-1]])
        for size, stride, at in zip(node.shape, _strides(node.shape), order, strict=True):
            of_row, of_key = (0 if at == gone else x[at] for x, gone in ((row, len(home) - 1), (key, len(home) - 2)))
            self._steps.append((stride, size, of_row, of_key))

    @functools.cached_property
    def sides(self) -> tuple[Side, Side]:
        """Its queries and its keys."""
        return sides(self._node, self._sources)

    def holds(self, at: Tensor) -> Tensor:
        """Which numbers are of its elements."""
        return (at > self._before) & (at <= self._before + self._node.shape.numel())

    def coordinates(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The places of the query and of the key of each element, among those of the sides."""
        at = at - (self._before + 1)
        row, key = torch.zeros_like(at), torch.zeros_like(at)
        for stride, size, of_row, of_key in self._steps:
            if size > 1:
                own = at // stride % size
                row = row + own * of_row if of_row else row
                key = key + own * of_key if of_key else key
        return row, key


def _strides(sizes: Sequence[int]) -> list[int]:
    """How many elements further the next of each dimension is."""
    return [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]


def _check_values(meeting: Meeting, used: Tensor, found_in: Sequence[_In], sources: Places) -> None:
    """RecordError unless the weight of each key meets the value of the same position and head."""
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
    origins = _origins_of(sources)
    for each in found_in:
        here = each.holds(used) & (numbers > 0)
        if not bool(here.any()):
            continue
        key, value = each.sides[1].numbers.flatten()[each.coordinates(used[here])[1]], numbers[here]
        value, key = value[key > 0], key[key > 0]
        for of_value in _held_by(value, origins):
            for of_key in _held_by(key[of_value.holds(value)], origins):
                both = of_value.holds(value) & of_key.holds(key)
                (*a, head), (*b, channel) = of_key.coordinates(key[both]), of_value.coordinates(value[both])
                if of_key.shape[:-1] != of_value.shape[:-1] or not all(map(torch.equal, a, b)):
                    raise RecordError(_ELSEWHERE)
                pairs = _pairs(head, channel)
                if pairs.shape[1] != len(pairs[0].unique()) or bool((pairs[1].diff() < 0).any()):
                    raise RecordError(_ELSEWHERE)  # the heads of both are not in the same order


def _pairs(a: Tensor, b: Tensor) -> Tensor:
    """The different pairs of two lists, in order; as `unique(dim=1)`, in a thousandth of the time."""
    width = int(b.max()) + 1
    both = (a.long() * width + b).unique()
    return torch.stack([both // width, both % width])


def read_call(call: Scores, rows: Tensor, keys: Tensor, dtype: torch.dtype) -> Piece:
    """The piece of a call, whose queries [B, H, Q] and keys [B, H, K] have these numbers."""
    record, (q_len, k_len) = AttentionRecord(call), call.shape[2:]
    k = call.k.repeat_interleave(call.heads_per_key_head, 1)
    of_q, of_k = (Side(x.flatten(0, 1), y.flatten(0, 1)) for x, y in ((rows, call.q), (keys, k)))

    def rows_of(index: Tensor) -> Rows:
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
    return Piece([(of_q, of_k)], row, rows_of, lambda: True, call.scale, dtype)


def sides(node: Product, sources: Places) -> tuple[Side, Side]:
    """The queries and the keys of a product."""
    factors = [sources.of(part) for _, part in node.factors]
    filled = [
        torch.zeros(shape, dtype=torch.int32, device=node.device) if each is None else each
        for each, (shape, _) in zip(factors, node.factors, strict=True)
    ]
    trail, lead = node.arrange(filled), node.trail.lead
    if trail is None or trail.q is None or trail.k is None or node.trail.q is None or node.trail.k is None:
        raise RecordError("its product could not be read a second time")
    one, two = (
        Side(
            number_of(x).expand(*lead, x.shape[-2]).reshape(-1, x.shape[-2]),
            y.expand(*lead, *y.shape[-2:]).reshape(-1, *y.shape[-2:]),
        )
        for x, y in ((trail.q, node.trail.q), (trail.k, node.trail.k))
    )
    return one, two


def number_of(vectors: Tensor) -> Tensor:
    """The number of each vector [..., n, D], the smallest of its elements': rotations exchange these."""
    return vectors.amin(-1)


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


def _origins_of(sources: Places) -> list[_Origin]:
    return [_Origin(node.shape, before) for node, before in sources.origins]


def _held_by(numbers: Tensor, origins: Sequence[_Origin]) -> list[_Origin]:
    """The origins that some of these elements are of."""
    return [each for each in origins if bool(each.holds(numbers).any())]


def merge(pieces: Sequence[Piece], sources: Places, heads: int | None, recognised: Recognised) -> AttentionCall:
    """The pieces of one attention as one call; queries that are in none of them attend to nothing.

    RecordError where no call says what they did.
    """
    if not all(piece.is_used() for piece in pieces):
        raise RecordError(_UNMET)
    grid = _Grid(pieces, _origins_of(sources))
    layout = read_layout(grid.lead, heads)
    numbers = torch.arange(math.prod(grid.lead)).view(*grid.lead, 1, 1)
    numbers = layout.fold(numbers)[..., 0, 0]  # [B, H], which of the tiles each is
    allowed = _of_all(_masks(grid), numbers)
    rest, scale = _rest(grid, pieces[0].scale, pieces[0].dtype)
    bias = None if rest is None else _of_all(rest, numbers)
    q, k = layout.fold(grid.q), layout.fold(grid.k)
    mask = None if bool(allowed.all()) else recognised.mask(allowed, (*q.shape[:3], k.shape[2]))[0]
    with torch.autocast(q.device.type, enabled=False):
        call = make_call(q, k, k[..., :1], mask=mask, bias=bias, scale=scale)
    wrong = wrong_weights(call, lambda rows: layout.fold(grid.weights(rows)), pieces[0].dtype)
    if wrong is not None:
        raise RecordError(wrong)
    return call


def _once(tile: _Tile, keys: int) -> _Tile:
    """The rows with each key once. If a softmax has it m times it counts m times: its score grows by log m."""
    there = tile.cols < keys
    seen = there.new_zeros(len(tile.rows), keys + 1).scatter_(1, tile.cols, value=True)[:, :keys]
    if int(seen.sum()) == int(there.sum()):
        return tile
    top = tile.scores.masked_fill(~there, -torch.inf).amax(-1, keepdim=True)
    parts = (tile.scores - top).exp().masked_fill(~there, 0.0), tile.weights.masked_fill(~there, 0.0)
    exps, weights = (x.new_zeros(len(seen), keys + 1).scatter_add(1, tile.cols, x)[:, :keys] for x in parts)
    cols = torch.arange(keys, device=seen.device).expand_as(seen).masked_fill(~seen, keys)
    return _Tile(tile.rows, cols, top + exps.log(), weights)


def _of_all(tiles: Sequence[Tensor], numbers: Tensor) -> Tensor:
    """[B|1, H|1, Q, K] of the tiles [Q, K] with these numbers [B, H]; what all share is there once."""
    first: list[int] = []  # of each tile, the first that is the same
    for i, tile in enumerate(tiles):
        first.append(next((j for j in dict.fromkeys(first) if tile is tiles[j] or torch.equal(tile, tiles[j])), i))
    grid = torch.tensor(first)[numbers]
    grid = grid[:, :1] if bool((grid == grid[:, :1]).all()) else grid
    grid = grid[:1] if bool((grid == grid[:1]).all()) else grid
    return torch.stack([torch.stack([tiles[i] for i in row]) for row in grid.tolist()])


class _Tile(NamedTuple):
    """The rows of a piece that are of one example and head."""

    rows: Tensor  # [t], their positions
    cols: Tensor  # [t, n], the positions of the keys; for masked ones their number
    scores: Tensor
    weights: Tensor


class _Grid:
    """Where the queries and keys of all pieces stand: in which example and head, at which position.

    Attributes:
        lead: the sizes of what queries and keys have in common: examples, heads.
        q, k: all of them, [*lead, Q, D] and [*lead, K, D].
    """

    def __init__(self, pieces: Sequence[Piece], origins: Sequence[_Origin]) -> None:
        pairs = [pair for piece in pieces for pair in piece.sides]
        rows, keys = (torch.cat([pair[i].numbers.flatten() for pair in pairs]) for i in (0, 1))
        of_rows = _held_by(rows, origins)
        if len(of_rows) != 1:
            raise RecordError(_FORMS)
        of_keys = _held_by(keys, origins)
        if len(of_keys) > 1 and _are_the_same(pairs):
            shared, single, k_at = *_groups(of_rows[0], pairs), None
        else:
            if not of_keys or any(len(each.shape) != len(of_rows[0].shape) for each in of_keys):
                raise RecordError(_FORMS)
            shared, single = _shared(of_rows[0], of_keys, pairs)
            k_at = _places(keys, of_keys, shared)
        q_at = _places(rows, of_rows, shared)
        k_at = k_at or _with_queries(q_at, pairs)
        if (len(shared) > 1 and q_at.heads > 1) or q_at.heads % k_at.heads:
            raise RecordError(_FORMS)  # heads are a dimension already: these are parts of their channels
        real, there, size = rows > 0, keys > 0, []
        for dim, one, two in zip(shared, q_at.lead, k_at.lead, strict=True):
            examples = one[real].unique()  # some may be absent: they are numbered again
            size.append(len(examples))
            one.copy_(torch.searchsorted(examples, one).clamp(max=len(examples) - 1))
            if dim in single:
                two.zero_()
            else:
                there &= torch.isin(two, examples)
                two.copy_(torch.searchsorted(examples, two).clamp(max=len(examples) - 1))
        k_size = [1 if dim in single else n for dim, n in zip(shared, size, strict=True)]
        self._check_heads(pairs, q_at, k_at)
        self.lead = (*size, q_at.heads) if q_at.heads > 1 or not size else tuple(size)
        q = _filled(torch.cat([pair[0].vectors.flatten(0, 1) for pair in pairs]), q_at, size, real)
        k = _filled(torch.cat([pair[1].vectors.flatten(0, 1) for pair in pairs]), k_at, k_size, there)
        k = k.expand(*size, *k.shape[len(size) :]).repeat_interleave(q_at.heads // k_at.heads, -3)
        self.q, self.k = (x.reshape(*self.lead, *x.shape[-2:]) for x in (q, k))
        self._pieces = self._sorted(pieces, _ravel([*q_at.lead, q_at.head], [*size, q_at.heads]), q_at, k_at)

    @staticmethod
    def _check_heads(pairs: Sequence[tuple[Side, Side]], q_at: _Places, k_at: _Places) -> None:
        """RecordError unless the queries of a head meet the keys of the head that it shares."""
        row = key = 0
        for queries, keys in pairs:
            one = (q_at.head[row : row + queries.count] * k_at.heads // q_at.heads).view(queries.numbers.shape)
            two = k_at.head[key : key + keys.count].view(keys.numbers.shape)
            row, key = row + queries.count, key + keys.count
            low, high = _range(two, keys.numbers > 0)
            first, last = _range(one, queries.numbers > 0)
            both = (queries.numbers > 0).any(1) & (keys.numbers > 0).any(1)
            if not bool(((low == high) & (first == low) & (last == low) | ~both).all()):
                raise RecordError(_FORMS)

    def _sorted(
        self, pieces: Sequence[Piece], which: Tensor, q_at: _Places, k_at: _Places
    ) -> list[list[tuple[Piece, Tensor, Tensor, Tensor]]]:
        """Of each example and head its pieces, with their rows, the positions of these and those of the keys."""
        found: list[list[tuple[Piece, Tensor, Tensor, Tensor]]] = [[] for _ in range(math.prod(self.lead))]
        row = key = 0
        for piece in pieces:
            own = piece.row.long() + row
            keys = torch.cat([k_at.position.new_tensor([k_at.length]), k_at.position[key:]])
            order = which[own].argsort(stable=True)
            counts = which[own].bincount(minlength=len(found)).tolist()
            for i, here in enumerate(order.split(counts)):
                if len(here):
                    found[i].append((piece, here, q_at.position[own[here]], keys))
            row, key = (n + sum(pair[i].count for pair in piece.sides) for i, n in ((0, row), (1, key)))
        for parts in found:
            places = torch.cat([place for _, _, place, _ in parts]) if parts else torch.zeros(0)
            if len(places.unique()) < len(places):
                raise RecordError(_TWICE)
        return found

    def tiles(self, i: int, rows: Tensor | None = None) -> Iterator[_Tile]:
        """The rows of one of the examples and heads; of all queries, or of those where `rows` [Q] is True."""
        for piece, here, place, keys in self._pieces[i]:
            some = slice(None) if rows is None else rows[place]
            if len(place[some]):
                cols, scores, weights = piece.rows(here[some])
                work = torch.promote_types(piece.dtype, torch.float32)
                tile = _Tile(place[some], keys[cols.long()], scores.to(work), weights.to(work))
                yield _once(tile, self.k.shape[-2])

    def weights(self, rows: Tensor | slice) -> Tensor:
        """Those that the model used for some rows, [*lead, rows, K]."""
        q_len, k_len = self.q.shape[-2], self.k.shape[-2]
        wanted = torch.zeros(q_len, dtype=torch.bool, device=self.q.device)
        wanted[rows] = True
        found = torch.zeros(len(self._pieces), int(wanted.sum()), k_len + 1, device=self.q.device, dtype=torch.float32)
        place = wanted.cumsum(0) - 1
        for i in range(len(found)):
            for tile in self.tiles(i, wanted):
                parts = found.new_zeros(len(tile.rows), k_len + 1).scatter_add(1, tile.cols, tile.weights.float())
                found[i, place[tile.rows]] = parts
        return found[..., :-1].reshape(*self.lead, -1, k_len)


def _are_the_same(pairs: Sequence[tuple[Side, Side]]) -> bool:
    """Whether all queries of a group met the same keys, or the first of them: as chunks of queries, beside a cache."""
    longest = max((keys.numbers for _, keys in pairs), key=lambda x: x.shape[1])
    if len(longest.unique()) < longest.numel():  # blocks, which share keys
        return False
    return all(
        len(keys.numbers) == len(longest) and torch.equal(keys.numbers, longest[:, : keys.numbers.shape[1]])
        for _, keys in pairs
    )


def _groups(of_rows: _Origin, pairs: Sequence[tuple[Side, Side]]) -> tuple[list[int], list[int]]:
    """As `_shared`, where all queries met the same keys: the dimensions in which the queries of a group are alike."""
    numbers = torch.cat([queries.numbers for queries, _ in pairs], 1)
    real = of_rows.holds(numbers)
    shared = []
    for dim, at in enumerate(of_rows.coordinates(numbers)[:-1]):
        low, high = _range(at, real)
        if bool(((low == high) | ~real.any(1)).all()):
            shared.append(dim)
    return shared, []


def _with_queries(q_at: _Places, pairs: Sequence[tuple[Side, Side]]) -> _Places:
    """Where keys stand that all queries of their group met: with these, in their own order."""
    row, lead, head, position = 0, [list[Tensor]() for _ in q_at.lead], list[Tensor](), list[Tensor]()
    for queries, keys in pairs:
        size = keys.numbers.shape
        first = (
            row
            + (queries.numbers > 0).to(torch.uint8).argmax(1)
            + torch.arange(size[0]).to(q_at.head.device) * (queries.numbers.shape[1])
        )
        row += queries.count
        for into, at in zip((*lead, head), (*q_at.lead, q_at.head), strict=True):
            into.append(at[first][:, None].expand(size).flatten())
        position.append(torch.arange(size[1], device=q_at.head.device).expand(size).flatten())
    found = [torch.cat(x) for x in (*lead, head, position)]
    return _Places(found[:-2], found[-2], q_at.heads, found[-1], max(keys.numbers.shape[1] for _, keys in pairs))


def _masks(grid: _Grid) -> list[Tensor]:
    """Which keys the queries of each example and head saw, bool [Q, K]; those that are alike are one tensor."""
    found: list[Tensor] = []
    for i in range(math.prod(grid.lead)):
        mask = grid.q.new_zeros(grid.q.shape[-2], grid.k.shape[-2] + 1, dtype=torch.bool)
        for tile in grid.tiles(i):
            mask[tile.rows] = mask.new_zeros(len(tile.rows), mask.shape[1]).scatter_(1, tile.cols, value=True)
        mask = mask[:, :-1]
        found.append(next((x for x in found if torch.equal(x, mask)), mask))
    return found


def _rest(grid: _Grid, scale: float, dtype: torch.dtype) -> tuple[list[Tensor] | None, float]:
    """(what scores have beside scale · q kᵀ, [Q, K] of each example and head, None for nothing; the scale).

    One number more or less for a row makes no difference. The scale is that of the pieces, or else the one that fits.
    """
    shape = (grid.q.shape[-2], grid.k.shape[-2])
    work = torch.promote_types(dtype, torch.float32)
    q, k = (x.flatten(0, -3).to(work) for x in (grid.q, grid.k))

    def parts() -> Iterator[tuple[int, _Tile, Tensor, Tensor]]:
        """(which, the tile, its scores and q kᵀ, both without the mean of each row; 0 where masked)"""
        for i in range(len(q)):
            product = torch.nn.functional.pad(q[i] @ k[i].mT, (0, 1))
            for tile in grid.tiles(i):
                masked = tile.cols == shape[1]
                count = (~masked).sum(-1, keepdim=True)

                def centred(x: Tensor, masked: Tensor = masked, count: Tensor = count) -> Tensor:
                    x = x.masked_fill(masked, 0.0)
                    return (x - x.sum(-1, keepdim=True) / count).masked_fill(masked, 0.0)

                yield i, tile, centred(tile.scores), centred(product[tile.rows].gather(1, tile.cols))

    dots = norms = largest = worst = 0.0
    for _, _, scores, product in parts():
        dots, norms = dots + float((scores * product).sum()), norms + float((product * product).sum())
        largest = max(largest, float(scores.abs().max()))
        worst = max(worst, float((scores - scale * product).abs().max()))
    allowed = 16 * torch.finfo(dtype).eps * (1 + largest)
    if worst <= allowed:
        return None, scale
    fitting = dots / norms if norms else 0.0
    if all(float((scores - fitting * product).abs().max()) <= allowed for _, _, scores, product in parts()):
        return None, fitting
    found = [q.new_zeros(shape[0], shape[1] + 1) for _ in q]
    for i, tile, scores, product in parts():
        rest = q.new_zeros(len(tile.rows), shape[1] + 1).scatter_(1, tile.cols, scores - scale * product)
        found[i][tile.rows] = rest
    return [x[:, :-1] for x in found], scale


@dataclasses.dataclass
class _Places:
    """Where queries or keys stand: of each its coordinates in what is shared, its head and its position."""

    lead: list[Tensor]
    head: Tensor
    heads: int
    position: Tensor
    length: int


def _shared(
    of_rows: _Origin, of_keys: Sequence[_Origin], pairs: Sequence[tuple[Side, Side]]
) -> tuple[list[int], list[int]]:
    """The dimensions in which each query has the place of its keys: examples, heads, not positions.

    And those of them in which there is one place of keys for all queries, as one head of keys.
    """
    dims = range(len(of_rows.shape) - 1)
    shared = {d for d in dims if all(each.shape[d] == of_rows.shape[d] for each in of_keys)}
    single = {d for d in dims if all(each.shape[d] > 1 for each in of_keys)}
    for each in of_keys:
        every = torch.cat([keys.numbers[each.holds(keys.numbers)] for _, keys in pairs])
        at = each.coordinates(every)
        single &= {d for d in single if bool((at[d] == at[d][:1]).all())}
        for queries, keys in pairs:
            real, there = of_rows.holds(queries.numbers), each.holds(keys.numbers)
            both = real.any(1) & there.any(1)
            one, two = of_rows.coordinates(queries.numbers), each.coordinates(keys.numbers)
            for d in list(shared):
                (low, high), (first, last) = _range(one[d], real), _range(two[d], there)
                if not bool(((low == high) & (first == low) & (last == low) | ~both).all()):
                    shared.remove(d)
    single -= shared
    if set(dims) == shared | single:  # else there would be no positions
        single = set()
    return sorted(shared | single), sorted(single)


def _range(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number of each row, of the real ones."""
    big = 2**40
    return x.long().masked_fill(~real, big).amin(1), x.long().masked_fill(~real, -big).amax(1)


def _places(numbers: Tensor, origins: Sequence[_Origin], shared: Sequence[int]) -> _Places:
    zeros = torch.zeros_like(numbers, dtype=torch.long)
    found = _Places([zeros.clone() for _ in shared], zeros.clone(), 0, zeros.clone(), 0)
    for each in origins:
        here = each.holds(numbers)
        coordinates = [x.contiguous().long() for x in each.coordinates(numbers[here])]
        channels = coordinates[-1].unique()
        if found.heads not in (0, len(channels)):
            raise RecordError(_FORMS)
        found.heads = len(channels)
        for at, dim in enumerate(shared):
            found.lead[at][here] = coordinates[dim]
        found.head[here] = torch.searchsorted(channels, coordinates[-1])
        rest = [dim for dim in range(len(each.shape) - 1) if dim not in shared]
        sizes = [each.shape[dim] for dim in rest]
        found.position[here] = _ravel([coordinates[dim] for dim in rest], sizes, coordinates[-1]) + found.length
        found.length += math.prod(sizes)
    return found


def _ravel(coordinates: Sequence[Tensor], sizes: Sequence[int], like: Tensor | None = None) -> Tensor:
    found = torch.zeros_like(like) if like is not None and not coordinates else torch.zeros_like(coordinates[0])
    for each, size in zip(coordinates, sizes, strict=True):
        found = found * size + each
    return found


def _filled(vectors: Tensor, at: _Places, size: Sequence[int], real: Tensor) -> Tensor:
    """[*size, heads, length, D] with the vectors where they belong."""
    where = _ravel([*at.lead, at.head, at.position], [*size, at.heads, at.length])
    found = vectors.new_zeros(math.prod(size) * at.heads * at.length, vectors.shape[-1])
    found[where[real]] = vectors[real]
    return found.view(*size, at.heads, at.length, -1)
