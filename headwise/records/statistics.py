"""Statistics of attention weights in one pass, however many are asked for, without ever holding the weights.

A tile of some rows, and of all keys that they may attend to, is made, asked every question while it is in the
processor's cache, and forgotten. Memory is that of the answers and of a few tiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.call import Scores, as_written
from headwise.errors import ArgumentError
from headwise.records.measures import WIDTH, Distances, Pool, keys_needed, largest
from headwise.records.tiles import Forbidden, Tile, Tiles, spread

# Cells of a tile, all its heads together, and how many could be computed in the time that a tile costs however small it
# is. On the CPU a tile is two buffers of 4 MB, which stay in the last cache. Half as much is as fast; a quarter is not,
# because the hundred small operations of each tile then weigh more. Other devices want few and large operations.
CELLS, OVERHEAD = 2**20, 2**15
DEVICE_CELLS, DEVICE_OVERHEAD = 2**26, 2**23

# Heads are put together in one tile where one head alone would fill it only with more rows than this. Tiles that are
# low follow the mask closely.
ROWS = 64


class Top(NamedTuple):
    """The largest weights of each row, descending, and their keys: two tensors [B, H, Q, top]."""

    weights: Tensor
    keys: Tensor


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What was asked for; None for the rest. A row that attends to nothing has 0 in everything but `lse` (-inf)."""

    lse: Tensor | None = None  #: log Σ exp(s) over the keys and the sink, [B, H, Q]
    entropy: Tensor | None = None  #: -Σ A log A of each row, in nats; a learned sink counts as a key, [B, H, Q]
    distance: Tensor | None = None  #: Σ_j A[i, j] |i - j| of each row, in tokens, [B, H, Q]
    received: Tensor | None = None  #: Σ_i A[i, j] of each key, [B, H, K]
    top: Top | None = None  #: the largest weights of each row and their keys, [B, H, Q, min(top, K)] each
    offset_mass: Tensor | None = (
        None  #: A[i, i - d] for each offset d, 0 where there is no such key, [B, H, Q, offsets]
    )
    sink_share: Tensor | None = None  #: the weight on the first keys that any query may attend to, [B, H, Q]
    learned_sink: Tensor | None = None  #: the weight that the learned sink takes, exp(sink - lse), [B, H, Q]
    keys_needed: Tensor | None = None  #: the fewest keys that hold `share` of the row's weight, int64 [B, H, Q]
    pooled_mean: Tensor | None = None  #: the matrix drawn small by means, [B, H, h, w]
    pooled_max: Tensor | None = None  #: the matrix drawn small by maxima, [B, H, h, w]


NAMES = tuple(field.name for field in dataclasses.fields(Statistics))


@dataclasses.dataclass(frozen=True)
class Options:
    """How the statistics that can be had in several ways are wanted. Raises ArgumentError for what makes no sense."""

    top: int = 8
    offsets: tuple[int, ...] = (1,)
    size: tuple[int, int] = (64, 64)
    share: float = 0.9
    sink_keys: int = 1
    rows: int | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(offset, int) for offset in self.offsets):
            raise ArgumentError(f"statistics: offsets must be whole numbers. Received: {list(self.offsets)}")
        if self.top < 1:
            raise ArgumentError(f"statistics: top must be at least 1. Received: {self.top}")
        if min(self.size) < 1:
            raise ArgumentError(f"statistics: size must be at least 1 × 1. Received: {self.size[0]} × {self.size[1]}")
        if not 0.0 < self.share <= 1.0:
            raise ArgumentError(f"statistics: share must be above 0 and at most 1. Received: {self.share}")
        if self.sink_keys < 1:
            raise ArgumentError(f"statistics: sink_keys must be at least 1. Received: {self.sink_keys}")
        if self.rows is not None and self.rows < 1:
            raise ArgumentError(f"statistics: rows must be at least 1. Received: {self.rows}")


def compute(call: Scores, names: Sequence[str], options: Options) -> Statistics:
    """The named statistics of a call's weights, and always `lse`. ArgumentError for a name that there is none of."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ArgumentError(f"statistics: the names are {', '.join(NAMES)}. Received: {', '.join(map(str, unknown))}")
    wanted = {"lse", *names}
    answers = _empty_answers(call, wanted, options)
    if 0 not in call.shape:
        _on_all_threads(lambda unit: _Pass(call, unit, answers, options).run(), _units(call, options), call.q.device)
    top = Top(answers.pop("top_weights"), answers.pop("top_keys")) if "top" in wanted else None
    return Statistics(**answers, top=top)


def _empty_answers(call: Scores, wanted: set[str], options: Options) -> dict[str, Tensor]:
    """The answers for a matrix of which no row attends to anything; the pass overwrites the others."""
    batch, heads, q_len, k_len = call.shape
    top = min(options.top, k_len)
    shapes = {
        "received": (k_len,),
        "offset_mass": (q_len, len(options.offsets)),
        "pooled_mean": (min(options.size[0], q_len), min(options.size[1], k_len)),
        "top_weights": (q_len, top),
    }
    shapes["pooled_max"] = shapes["pooled_mean"]
    dtype, device = torch.promote_types(call.q.dtype, torch.float32), call.q.device
    names = wanted - {"top"} | ({"top_weights"} if "top" in wanted else set())
    answers = {
        name: torch.zeros((batch, heads, *shapes.get(name, (q_len,))), dtype=dtype, device=device) for name in names
    }
    answers["lse"].fill_(-math.inf)
    if call.sinks is not None:
        answers["lse"].copy_(call.sinks[:, None])
        if "learned_sink" in wanted:
            answers["learned_sink"].fill_(1.0)
    if "keys_needed" in wanted:
        answers["keys_needed"] = answers["keys_needed"].long()
    if "top" in wanted:
        answers["top_keys"] = torch.arange(top, device=call.q.device).expand(batch, heads, q_len, top).contiguous()
    return answers


class _Unit(NamedTuple):
    """What is gone through at once: some heads of one example that share a mask."""

    tiles: Tiles
    b: int
    heads: slice
    sink_keys: list[int]

    def of(self, call: Scores) -> Scores:
        """This part of a call, in float32 or better, without the mask."""
        part = call.part(b=slice(self.b, self.b + 1), heads=self.heads)
        return dataclasses.replace(part, q=part.q.to(call.dtype) * call.scale, k=part.k.to(call.dtype), scale=1.0)


def _units(call: Scores, options: Options) -> list[_Unit]:
    batch, heads, q_len, k_len = call.shape
    on_cpu = call.q.device.type == "cpu"
    cells, overhead = (CELLS, OVERHEAD) if on_cpu else (DEVICE_CELLS, DEVICE_OVERHEAD)
    # Several heads at a time, where one would make small tiles, so long as no thread waits for another at the end.
    threads = torch.get_num_threads() if on_cpu else 1
    most = 1 if call.mask is not None and call.mask.heads else min(heads, max(1, cells // (min(q_len, ROWS) * k_len)))
    together = min(range(most, 0, -1), key=lambda n: n * -(-batch * -(-heads // n) // threads))
    tiles = Tiles(
        *(call.mask, q_len, k_len),
        cells=cells // together,
        overhead=overhead // together,
        least_keys=options.top,
        device=call.q.device,
    )
    used = None if call.mask is None else call.mask.used_keys(q_len, k_len)

    def first_keys(b: int, h: int) -> list[int]:
        """The first keys that any query may attend to."""
        if used is None:
            return list(range(min(options.sink_keys, k_len)))
        seen = used[b if used.shape[0] > 1 else 0, h if used.shape[1] > 1 else 0]
        return seen.nonzero()[: options.sink_keys, 0].tolist()

    return [
        _Unit(tiles, b, slice(h, min(h + together, heads)), first_keys(b, h))
        for b in range(batch)
        for h in range(0, heads, together)
    ]


def _on_all_threads(work: Callable[[_Unit], None], units: list[_Unit], device: torch.device) -> None:
    """Do the work of every unit, on as many threads as torch has."""

    def one(unit: _Unit) -> None:
        # The answers were made outside, so what is written into them is not marked as made in inference mode.
        with torch.inference_mode(), as_written(device):
            work(unit)

    before = torch.get_num_threads()
    threads = min(before, len(units))
    if device.type != "cpu" or threads == 1:
        for unit in units:
            one(unit)
        return
    # A head for each thread keeps its tiles in the cache of one core, and nobody waits for another after every
    # operation. How many threads torch uses is each thread's own, but what new threads begin with has to be put back.
    try:
        with ThreadPoolExecutor(threads, "headwise", lambda: torch.set_num_threads(1)) as pool:
            for _ in pool.map(one, units):
                pass
    finally:
        torch.set_num_threads(before)


class _Pass:
    """One pass over the rows of a unit. n is how many heads that is."""

    def __init__(self, call: Scores, unit: _Unit, answers: dict[str, Tensor], options: Options) -> None:
        self.unit, self.options = unit, options
        self.scores = unit.of(call)
        _, self.n, self.q_len, self.k_len = self.scores.shape
        self.sinks = None if self.scores.sinks is None else self.scores.sinks[:, None]
        self.tiles = unit.tiles.of(unit.b, unit.heads.start)
        if options.rows is not None:
            self.tiles = spread(self.tiles, options.rows)
        self.answers = {name: answer[unit.b, unit.heads] for name, answer in answers.items()}  # [n, ...], views
        cells = max((self.n * tile.rows * _width(tile) for tile in self.tiles), default=0)
        self.buffers = self.scores.q.new_empty((2, cells))
        # The highest score of each row, and its weight, were there no sink: exp(highest - lse). 0 for an empty row.
        self.highest, self.heaviest = self.scores.q.new_zeros((2, self.n, self.q_len))

    def run(self) -> None:
        """Answer everything, tile by tile."""
        answers, options = self.answers, self.options
        pool = distances = None
        if "pooled_mean" in answers or "pooled_max" in answers:
            pool = Pool(answers, self.tiles, self.q_len, self.k_len)
        if "distance" in answers:
            most = max((tile.rows for tile in self.tiles), default=0)
            distances = Distances(self.q_len, self.k_len, most, self.highest)
        for tile in self.tiles:
            rows = slice(tile.q_lo, tile.q_hi)
            forbidden = self.unit.tiles.forbidden(self.unit.b, self.unit.heads.start, tile)
            s = self.tile_scores(tile, forbidden)
            weights = self.weights(s, tile, may_be_empty=bool(forbidden) or self.scores.bias is not None)
            if "entropy" in answers:
                torch.sum(self.spread(s, weights, tile, forbidden), dim=-1, out=answers["entropy"][:, rows])
            if distances is not None:
                answers["distance"][:, rows] = distances.of(weights, tile)
            if "sink_share" in answers:
                for key in self.unit.sink_keys:
                    if tile.k_lo <= key < tile.k_hi:
                        answers["sink_share"][:, rows] += weights[..., key - tile.k_lo]
            if "offset_mass" in answers:
                for i, offset in enumerate(options.offsets):
                    self.offset_mass(weights, tile, offset, answers["offset_mass"][..., i])
            if "top_weights" in answers:
                found, where = largest(weights, tile.keys, answers["top_weights"].shape[-1])
                answers["top_weights"][:, rows] = found
                torch.add(where, tile.k_lo, out=answers["top_keys"][:, rows])
            if pool is not None:
                pool.add(weights, tile)
            elif "received" in answers:
                answers["received"][:, tile.k_lo : tile.k_hi] += weights.sum(1)[:, : tile.keys]
            if "keys_needed" in answers:  # last, because it sorts the weights
                answers["keys_needed"][:, rows] = keys_needed(weights, options.share)
        if pool is not None:
            pool.flush()
        self.finish()

    def tile_scores(self, tile: Tile, forbidden: list[Forbidden]) -> Tensor:
        """[n, rows, keys], -inf where attention is forbidden and where keys are filled up."""
        shape = (self.n, tile.rows, _width(tile))
        s = self.buffers[0, : math.prod(shape)].view(shape)
        inner = s[..., : tile.keys]
        some = self.scores.part(rows=slice(tile.q_lo, tile.q_hi), cols=slice(tile.k_lo, tile.k_hi))
        some.unmasked(out=inner[None])
        if shape[2] > tile.keys:
            s[..., tile.keys :] = -math.inf
        for part, pattern in forbidden:
            if pattern is None:
                inner[..., part] = -math.inf
            else:
                inner[..., part].masked_fill_(pattern, -math.inf)
        return s

    def weights(self, s: Tensor, tile: Tile, *, may_be_empty: bool) -> Tensor:
        """exp(s - lse), 0 for an empty row. Notes the highest score and the heaviest weight of each row."""
        weights = self.buffers[1, : s.numel()].view(s.shape)
        highest, heaviest = (x[:, tile.q_lo : tile.q_hi] for x in (self.highest, self.heaviest))
        torch.softmax(s, dim=-1, out=weights)
        torch.amax(s, dim=-1, out=highest)
        torch.amax(weights, dim=-1, out=heaviest)
        if may_be_empty:
            empty = highest == -math.inf
            if bool(empty.any()):
                weights[empty] = 0.0
                highest.masked_fill_(empty, 0.0)
                heaviest.masked_fill_(empty, 0.0)
        if self.sinks is not None:
            lse = highest - heaviest.log()
            lse.masked_fill_(heaviest == 0.0, -math.inf)
            weights *= torch.exp(lse - _finite(torch.logaddexp(lse, self.sinks)))[..., None]
        return weights

    def spread(self, s: Tensor, weights: Tensor, tile: Tile, forbidden: list[Forbidden]) -> Tensor:
        """A (s - highest) of every cell, written over the scores. All are negative: nothing cancels in their sum."""
        lowest = torch.finfo(s.dtype).min  # 0 · lowest is 0, 0 · -inf is not
        s -= self.highest[:, tile.q_lo : tile.q_hi, None]
        if self.scores.bias is None:
            if s.shape[2] > tile.keys:
                s[..., tile.keys :] = lowest
            for part, _ in forbidden:
                s[..., part].clamp_(min=lowest)
        else:
            s.clamp_(min=lowest)
        s *= weights
        return s

    def offset_mass(self, weights: Tensor, tile: Tile, offset: int, answer: Tensor) -> None:
        """Write A[i, i - offset] of the tile's rows where there is such a key; `answer` is [n, Q]."""
        shift = tile.q_lo + self.k_len - self.q_len - offset - tile.k_lo  # row r of the tile looks at its key r + shift
        first = max(0, -shift)
        if first < tile.rows and shift < tile.keys:
            diagonal = weights[..., : tile.keys].diagonal(shift, 1, 2)
            start = tile.q_lo + first
            answer[:, start : start + diagonal.shape[1]] = diagonal

    def finish(self) -> None:
        """What is worked out from all rows at once: log-sum-exps, and what follows from them."""
        empty = self.heaviest == 0.0
        above = -self.heaviest.log().masked_fill_(empty, 0.0)  # how far the log-sum-exp lies above the highest score
        lse = (self.highest + above).masked_fill_(empty, -math.inf)
        on_keys, on_sink = torch.ones_like(lse), torch.zeros_like(lse)
        if self.sinks is not None:
            total = torch.logaddexp(lse, self.sinks)
            on_keys, on_sink = torch.exp(lse - _finite(total)), torch.exp(self.sinks - _finite(total))
            above, lse = _finite(total) - self.highest, total
        if self.options.rows is not None:
            left_out = torch.ones(self.q_len, dtype=torch.bool, device=lse.device)
            for tile in self.tiles:
                left_out[tile.q_lo : tile.q_hi] = False
            lse, on_sink = lse.masked_fill(left_out, math.nan), on_sink.masked_fill(left_out, 0.0)
        self.answers["lse"].copy_(lse)
        if "learned_sink" in self.answers:
            self.answers["learned_sink"].copy_(on_sink)
        if "entropy" in self.answers:  # Σ A (lse - s) = Σ A (lse - highest) - Σ A (s - highest), and the sink's term
            entropy = on_keys * above - self.answers["entropy"] - torch.xlogy(on_sink, on_sink)
            self.answers["entropy"].copy_(entropy.clamp_(min=0.0))  # 0 rather than -0


def _finite(lse: Tensor) -> Tensor:
    """The log-sum-exps with 0 for those of rows that attend to nothing."""
    return lse.masked_fill(lse == -math.inf, 0.0)


def _width(tile: Tile) -> int:
    """The tile's keys, filled up."""
    return -(-tile.keys // WIDTH) * WIDTH
