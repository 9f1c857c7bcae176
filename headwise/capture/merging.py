"""Merges the pieces of one attention into one call. A piece is the rows (queries) of one softmax (pieces.py)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.call import AttentionCall, make_call
from headwise.capture.layout import read_layout
from headwise.capture.masks import Recognised
from headwise.capture.pieces import TWICE, Piece, Side, held_by
from headwise.capture.tape import Origin, Places
from headwise.capture.verify import wrong_weights
from headwise.errors import RecordError

_UNMET = "some weights of its softmax meet no values"
_FORMS = "its queries and keys come from tensors of different forms"


def merge(pieces: Sequence[Piece], sources: Places, heads: int | None, recognised: Recognised) -> AttentionCall:
    """Merge the pieces (softmaxes) of one attention into one call; queries that are in no piece attend to nothing.

    RecordError if no call can express what the pieces computed.
    """
    if not all(piece.is_used() for piece in pieces):
        raise RecordError(_UNMET)
    grid = _Grid(pieces, sources.origins)
    layout = read_layout(grid.lead, heads)
    numbers = torch.arange(math.prod(grid.lead), device="cpu").view(*grid.lead, 1, 1)
    numbers = layout.fold(numbers)[..., 0, 0]  # [B, H], the number of the tile of each
    allowed = _arrange_tiles(_masks(grid), numbers)
    rest, scale = _rest(grid, pieces[0].scale, pieces[0].dtype)
    bias = None if rest is None else _arrange_tiles(rest, numbers)
    q, k = layout.fold(grid.q), layout.fold(grid.k)
    mask = None if bool(allowed.all()) else recognised.mask(allowed, (*q.shape[:3], k.shape[2]))[0]
    with torch.autocast(q.device.type, enabled=False):
        call = make_call(q, k, k[..., :1], mask=mask, bias=bias, scale=scale, sinks=_sinks(pieces))
    wrong = wrong_weights(call, lambda rows: layout.fold(grid.weights(rows)), pieces[0].dtype)
    if wrong is not None:
        raise RecordError(wrong)
    return call


def _sinks(pieces: Sequence[Piece]) -> Tensor | None:
    """Return the learned sinks of the pieces; RecordError if they differ. (Sinks fit only the model's own scores.)"""
    found = [piece.sinks for piece in pieces if piece.sinks is not None]
    if found and (len(found) < len(pieces) or not all(torch.equal(x, found[0]) for x in found)):
        raise RecordError("its pieces have different sinks")
    return found[0] if found else None


def _once(tile: _Tile, keys: int) -> _Tile:
    """Return the tile with each key once. A key that is m times in a softmax gets log m added to its score."""
    there = tile.cols < keys
    seen = there.new_zeros(len(tile.rows), keys + 1).scatter_(1, tile.cols, value=True)[:, :keys]
    if int(seen.sum()) == int(there.sum()):
        return tile
    top = tile.scores.masked_fill(~there, -torch.inf).amax(-1, keepdim=True)
    parts = (tile.scores - top).exp().masked_fill(~there, 0.0), tile.weights.masked_fill(~there, 0.0)
    exps, weights = (x.new_zeros(len(seen), keys + 1).scatter_add(1, tile.cols, x)[:, :keys] for x in parts)
    cols = torch.arange(keys, device=seen.device).expand_as(seen).masked_fill(~seen, keys)
    return _Tile(tile.rows, cols, top + exps.log(), weights)


def _arrange_tiles(tiles: Sequence[Tensor], numbers: Tensor) -> Tensor:
    """Arrange tiles [Q, K] by their numbers [B, H] as [B|1, H|1, Q, K]: size 1 if all examples or heads are equal."""
    first: list[int] = []  # for each tile, the first equal tile
    for i, tile in enumerate(tiles):
        first.append(next((j for j in dict.fromkeys(first) if tile is tiles[j] or torch.equal(tile, tiles[j])), i))
    grid = torch.tensor(first, device=numbers.device)[numbers]
    grid = grid[:, :1] if bool((grid == grid[:, :1]).all()) else grid
    grid = grid[:1] if bool((grid == grid[:1]).all()) else grid
    return torch.stack([torch.stack([tiles[i] for i in row]) for row in grid.tolist()])


class _Tile(NamedTuple):
    """The rows of a piece that belong to one example and one head, with their keys, scores and weights."""

    rows: Tensor  # [t], the positions of the rows
    cols: Tensor  # [t, n], the positions of the keys; at masked keys, the number of all keys
    scores: Tensor
    weights: Tensor


class _Grid:
    """The queries and keys of all pieces (softmaxes of one attention), arranged by example, head and position.

    Attributes:
        lead: the sizes of the dimensions that queries and keys share: examples and heads.
        q, k: all queries and keys, [*lead, Q, D] and [*lead, K, D].
    """

    def __init__(self, pieces: Sequence[Piece], origins: Sequence[Origin]) -> None:
        pairs = [pair for piece in pieces for pair in piece.sides]
        rows, keys = (torch.cat([pair[i].numbers.flatten() for pair in pairs]) for i in (0, 1))
        of_rows = held_by(rows, origins)
        if len(of_rows) != 1:
            raise RecordError(_FORMS)
        of_keys = _sort_by_keys(held_by(keys, origins), pairs)
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
        """Raise RecordError unless the queries of each head were scored against keys of the key head that it reads."""
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
        """Return, for each example and head, its rows as (piece, row indices, row positions, key positions)."""
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
            places = torch.cat([place for _, _, place, _ in parts]) if parts else which[:0]
            if len(places.unique()) < len(places):
                raise RecordError(TWICE)
        return found

    def tiles(self, i: int, rows: Tensor | None = None) -> Iterator[_Tile]:
        """Yield the rows of one example and head, number `i`: all rows, or the queries where `rows` [Q] is True."""
        for piece, here, place, keys in self._pieces[i]:
            some = slice(None) if rows is None else rows[place]
            if len(place[some]):
                cols, scores, weights = piece.rows(here[some])
                work = torch.promote_types(piece.dtype, torch.float32)
                tile = _Tile(place[some], keys[cols.long()], scores.to(work), weights.to(work))
                yield _once(tile, self.k.shape[-2])

    def weights(self, rows: Tensor | slice) -> Tensor:
        """Return the weights that the model used, [*lead, rows, K], for some rows (queries)."""
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
    """Return whether all queries have the same keys, or (chunks of queries with a cache) the first part of them."""
    longest = max((keys.numbers for _, keys in pairs), key=lambda x: x.shape[1])
    if len(longest.unique()) < longest.numel():  # blocks, which share keys
        return False
    return all(
        len(keys.numbers) == len(longest) and torch.equal(keys.numbers, longest[:, : keys.numbers.shape[1]])
        for _, keys in pairs
    )


def _groups(of_rows: Origin, pairs: Sequence[tuple[Side, Side]]) -> tuple[list[int], list[int]]:
    """Find the dimensions in which all queries of a group have the same index: (these dimensions, []).

    Used in place of `_shared` if all queries have the same keys.
    """
    numbers = torch.cat([queries.numbers for queries, _ in pairs], 1)
    real = of_rows.holds(numbers)
    shared = []
    for dim, at in enumerate(of_rows.coordinates(numbers)[:-1]):
        low, high = _range(at, real)
        if bool(((low == high) | ~real.any(1)).all()):
            shared.append(dim)
    return shared, []


def _with_queries(q_at: _Places, pairs: Sequence[tuple[Side, Side]]) -> _Places:
    """Place keys that a group of queries shares: at the example and head of these queries, in the order of the keys."""
    row, lead, head, position = 0, [list[Tensor]() for _ in q_at.lead], list[Tensor](), list[Tensor]()
    for queries, keys in pairs:
        size = keys.numbers.shape
        first = (
            row
            + (queries.numbers > 0).to(torch.uint8).argmax(1)
            + torch.arange(size[0], device=q_at.head.device) * (queries.numbers.shape[1])
        )
        row += queries.count
        for into, at in zip((*lead, head), (*q_at.lead, q_at.head), strict=True):
            into.append(at[first][:, None].expand(size).flatten())
        position.append(torch.arange(size[1], device=q_at.head.device).expand(size).flatten())
    found = [torch.cat(x) for x in (*lead, head, position)]
    return _Places(found[:-2], found[-2], q_at.heads, found[-1], max(keys.numbers.shape[1] for _, keys in pairs))


def _masks(grid: _Grid) -> list[Tensor]:
    """Return, for each example and head, which keys its queries saw: bool [Q, K]; equal masks are one tensor."""
    found: list[Tensor] = []
    for i in range(math.prod(grid.lead)):
        mask = grid.q.new_zeros(grid.q.shape[-2], grid.k.shape[-2] + 1, dtype=torch.bool)
        for tile in grid.tiles(i):
            mask[tile.rows] = mask.new_zeros(len(tile.rows), mask.shape[1]).scatter_(1, tile.cols, value=True)
        mask = mask[:, :-1]
        found.append(next((x for x in found if torch.equal(x, mask)), mask))
    return found


def _rest(grid: _Grid, scale: float, dtype: torch.dtype) -> tuple[list[Tensor] | None, float]:
    """Return (the difference of the scores and scale · q kᵀ, the scale). The difference is None if it is 0.

    It is a tensor [Q, K] for each example and head. A number that is added to a whole row is ignored. The scale is
    the scale of the pieces, or another scale that fits the scores better.
    """
    shape = (grid.q.shape[-2], grid.k.shape[-2])
    work = torch.promote_types(dtype, torch.float32)
    q, k = (x.flatten(0, -3).to(work) for x in (grid.q, grid.k))

    def parts() -> Iterator[tuple[int, _Tile, Tensor, Tensor]]:
        """Yield (index of example and head, a tile, its scores, its q kᵀ), both minus row means, 0 where masked."""
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
    """The place of each query or key: its indices in the shared dimensions (examples), its head and its position."""

    lead: list[Tensor]
    head: Tensor
    heads: int
    position: Tensor
    length: int


def _shared(
    of_rows: Origin, of_keys: Sequence[Origin], pairs: Sequence[tuple[Side, Side]]
) -> tuple[list[int], list[int]]:
    """Return the dimensions in which a query and its keys have the same index: examples and heads, not positions.

    The second list has the dimensions among them in which all keys have one index, such as a single head of keys.
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
    """Return the smallest and the largest number of each row of `x`, only among the numbers where `real` is True."""
    big = 2**40
    return x.long().masked_fill(~real, big).amin(1), x.long().masked_fill(~real, -big).amax(1)


def _sort_by_keys(of_keys: Sequence[Origin], pairs: Sequence[tuple[Side, Side]]) -> list[Origin]:
    """Sort the tensors that keys come from by the first key of each: the keys of a cache come before the new keys."""
    longest = max((keys.numbers for _, keys in pairs), key=lambda numbers: numbers.shape[1])
    first = {each: each.holds(longest).any(0).nonzero().flatten().tolist()[:1] for each in of_keys}
    return sorted(of_keys, key=lambda each: first[each] or [longest.shape[1]])


def _places(numbers: Tensor, origins: Sequence[Origin], shared: Sequence[int]) -> _Places:
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
        found.position[here] = _ravel([coordinates[dim] for dim in rest], sizes) + found.length
        found.length += math.prod(sizes)
    return found


def _ravel(coordinates: Sequence[Tensor], sizes: Sequence[int]) -> Any:
    found: Any = 0
    for each, size in zip(coordinates, sizes, strict=True):
        found = found * size + each
    return found


def _filled(vectors: Tensor, at: _Places, size: Sequence[int], real: Tensor) -> Tensor:
    """Return a tensor [*size, heads, length, D] that has each real vector at its place (example, head, position)."""
    where = _ravel([*at.lead, at.head, at.position], [*size, at.heads, at.length])
    found = vectors.new_zeros(math.prod(size) * at.heads * at.length, vectors.shape[-1])
    found[where[real]] = vectors[real]
    return found.view(*size, at.heads, at.length, -1)
