"""The torch engine: computes attention on the CPU over a list of tiles (rectangles of the matrix), with its backward.

Each tile is one call of torch's fused CPU kernel, which also gives the log-sum-exp. When the backward of that kernel
gets the output and the log-sum-exp of whole rows, it returns exactly what the tile contributes to the gradients
(FlashAttention, Dao et al. 2022, section 3.2 and appendix B). Nothing outside the tiles is computed. A small tile that
needs no log-sum-exp is computed from its scores, which then stay in the processor's cache.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import flash
from headwise.kernels.kept import name_changed, owned
from headwise.kernels.kernel import cut_to_values, fused_inputs
from headwise.kernels.once import once_differentiable
from headwise.masks.cellwise import fixed
from headwise.softmax import EMPTY, Normaliser, add_sinks, emptied, finite, merge, sinks_gradient
from headwise.tiles import Tile, TileList, forbidden

# Torch's operator takes any strides, but assumes without a check that the stride of the last dimension is 1. It takes
# float32 masks with inputs in half precision, and gives an empty row the log-sum-exp 0.
_forward, _backward = flash.find()


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Run torch's fused kernel; return output [B, H, Q, E], log-sum-exp [B, H, Q]. `mask`: bool, or floats to add."""
    if mask is not None and mask.dtype == torch.bool:
        mask = q.new_zeros(mask.shape).masked_fill_(~mask, EMPTY)
    out, lse = _forward(*map(in_rows, (q, k, v)), 0.0, causal, attn_mask=mask, scale=scale)
    return out, lse


def in_rows(x: Tensor) -> Tensor:
    """Return x, copied if necessary so that its last dimension has stride 1."""
    return x if x.stride(-1) == 1 else x.contiguous()


def run(call: AttentionCall, tiles: TileList, by_scores: list[bool]) -> tuple[Tensor, Tensor]:
    """Compute the output [B, H, Q, E] and log-sum-exp [B, H, Q] of a call that is cut into tiles.

    `by_scores` says which tiles are computed from their scores; the log-sum-exp of these tiles is not known (-inf).
    """
    q, k, v, scale = fused_inputs(call)
    q, k, v = map(in_rows, (q, k, v))
    work = _Work(call, tiles, by_scores, scale)
    if not call.trains:
        out, lse = _attend(q, k, v, call.sinks, work)
        return cut_to_values(call, out), lse
    out, lse = _Tiled.apply(q, k, v, call.bias, call.slopes, call.sinks, work)
    name_changed(out, call.option_tensors())
    return cut_to_values(call, out), lse


@dataclasses.dataclass(frozen=True)
class _Work:
    """The arguments of `_Tiled` that get no gradients: the call, its tiles, and how to compute each tile."""

    call: AttentionCall
    tiles: TileList
    by_scores: list[bool]
    scale: float

    def parts(self) -> Iterator[tuple[_Part, bool]]:
        """Yield (a tile with its mask, whether to compute it from scores). Tiles with equal masks share one."""
        patterns: dict[Any, _Pattern] = {}
        alike = self.tiles.alike and not self.call.biases
        for tile, by_scores in zip(self.tiles, self.by_scores, strict=True):
            pattern = patterns.get(tile.shape) if alike else None
            if pattern is None:
                pattern = patterns[tile.shape] = _pattern(self.call, tile)
            yield _Part(tile, pattern, self.call.heads_per_key_head), by_scores


class _Tiled(torch.autograd.Function):
    """The autograd function of a call cut into tiles: it runs the fused kernel and its backward tile by tile."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        q, k, v, bias, slopes, sinks, work = given
        out, lse = _attend(q, k, v, sinks, work)
        ctx.save_for_backward(q, k, v, owned(bias), owned(slopes), owned(sinks), out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.mask = None if work.call.mask is None else fixed(work.call.mask, *work.call.shape[2:])
        ctx.work = work.tiles, work.by_scores, work.scale
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Any, ...], d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, slopes, sinks, out, lse = saved
        work = _Work(AttentionCall(q, k, v=v, mask=ctx.mask, bias=bias, slopes=slopes), *ctx.work)
        dq, dk, dv = _attend_backward(in_rows(d_out), q, k, v, out, finite(lse), work)
        d_sinks = None if sinks is None else sinks_gradient(sinks, Normaliser.of_lse(lse), out, d_out)
        return dq, dk, dv, None, None, d_sinks, None


def _attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, work: _Work) -> tuple[Tensor, Tensor]:
    shape = (*q.shape[:3], v.shape[-1])
    out = q.new_empty(shape) if work.tiles.covers(q.shape[2]) else q.new_zeros(shape)
    lse = q.new_full(q.shape[:3], EMPTY, dtype=work.call.dtype)
    for part, by_scores in work.parts():
        if by_scores:
            part.queries(out).copy_(_weigh(part, q, k, v, work.scale))
            continue
        tile_out, tile_lse = _forward(
            *(part.queries(q), part.keys(k), part.keys(v), 0.0, part.tile.causal),
            attn_mask=part.pattern.additive,
            scale=work.scale,
        )
        if part.pattern.empty_rows is not None:
            tile_lse = tile_lse.masked_fill(part.pattern.empty_rows, EMPTY)
        if part.tile.shared:
            tile_out, tile_lse = merge(part.queries(out), part.queries(lse), tile_out, tile_lse)
        part.queries(out).copy_(tile_out)
        part.queries(lse).copy_(tile_lse)
    return add_sinks(out, lse, sinks)


def _weigh(part: _Part, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Compute the output of one tile, [B, H, rows, E], from its scores, by two matrix products and a softmax."""
    q, k, v = part.queries(q), part.keys(k), part.keys(v)
    keys = k.flatten(0, 1).mT
    grouped = q.reshape(len(keys), -1, q.shape[3])  # the query heads of a key head are stacked
    pattern, additive = part.pattern, None
    if 4 * part.tile.masked_keys >= part.tile.keys:  # added to all scores on the way, else to a few of them afterwards
        additive = pattern.additive
    if additive is not None:
        additive = additive.expand(*q.shape[:3], -1).reshape(*grouped.shape[:2], -1)
        scores = torch.baddbmm(additive, grouped, keys, alpha=scale)
    else:
        scores = torch.bmm(grouped * scale, keys)
        by_head = scores.view(*q.shape[:3], -1)
        for keys_of_piece, piece in pattern.pieces:
            by_head[..., keys_of_piece] += piece
    out = torch.bmm(torch.softmax(scores, dim=-1), v.flatten(0, 1)).view(*q.shape[:3], -1)
    return emptied(out, pattern.empty_rows)


def _attend_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, work: _Work
) -> tuple[Tensor, Tensor, Tensor]:
    wide = work.call.dtype
    dq = torch.zeros_like(q)
    dk, dv = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)  # many tiles add to one key
    for part, _ in work.parts():
        tile_dq, tile_dk, tile_dv = _backward(
            *(part.queries(d_out), part.queries(q), part.keys(k), part.keys(v), part.queries(out), part.queries(lse)),
            *(0.0, part.tile.causal),
            attn_mask=part.pattern.additive,
            scale=work.scale,
        )
        part.queries(dq).add_(tile_dq)
        part.add_to_keys(dk, tile_dk)
        part.add_to_keys(dv, tile_dv)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """The mask and bias of a tile, in pieces: numbers to add to the scores of some of its keys."""

    shape: tuple[int, int]  # number of queries and keys
    pieces: tuple[tuple[slice, Tensor], ...] = ()  # keys of the tile, and the numbers that are added to their scores
    empty_rows: Tensor | None = None  # queries that may attend to nothing, [queries] or [B|1, H|1, queries], if any

    @functools.cached_property
    def additive(self) -> Tensor | None:
        """Join all pieces into one tensor that broadcasts to [B, H, queries, keys]; None = nothing is added."""
        if not self.pieces:
            return None
        keys, piece = self.pieces[0]
        if keys == slice(0, self.shape[1]):
            return piece
        whole = piece.new_zeros((1, 1, *self.shape))
        for keys, piece in self.pieces:
            whole[..., keys] = piece
        return whole


class _Part(NamedTuple):
    """A tile with its mask. It cuts the queries and keys of the tile out of the tensors of the call."""

    tile: Tile
    pattern: _Pattern
    heads_per_key_head: int

    def queries(self, x: Tensor) -> Tensor:
        """Return a view of the tile's queries in x [B, H, Q, ...]."""
        return self._matrices(x, self.tile.h).narrow(2, self.tile.q_lo, self.tile.rows)

    def keys(self, x: Tensor) -> Tensor:
        """Return the tile's keys in x [B, G, K, ·]: a view if they are consecutive, else a copy."""
        x, tile = self._matrices(x, self._key_head), self.tile
        if tile.span == tile.keys:
            return x.narrow(2, tile.k_lo, tile.keys)
        return torch.cat([x[:, :, run.lo : run.hi] for run in tile.runs], dim=2)

    def add_to_keys(self, total: Tensor, x: Tensor) -> None:
        """Add the gradient x of the tile's keys to `total` [B, G, K, ·]."""
        total = self._matrices(total, self._key_head)
        at = 0
        for run in self.tile.runs:
            total[:, :, run.lo : run.hi] += x[:, :, at : at + run.hi - run.lo]
            at += run.hi - run.lo

    @property
    def _key_head(self) -> int | None:
        return None if self.tile.h is None else self.tile.h // self.heads_per_key_head

    def _matrices(self, x: Tensor, head: int | None) -> Tensor:
        x = x if self.tile.b is None else x[self.tile.b : self.tile.b + 1]
        return x if head is None else x[:, head : head + 1]


def _pattern(call: AttentionCall, tile: Tile) -> _Pattern:
    dtype = call.dtype if call.biases else call.q.dtype
    pieces: list[tuple[slice, Tensor]] = []
    at, rows = 0, torch.arange(tile.q_lo, tile.q_hi, device=call.q.device)
    empty = torch.full_like(rows, tile.masked_keys == tile.keys, dtype=torch.bool)
    for run in tile.runs:
        keys = slice(at, at + run.hi - run.lo)
        at = keys.stop
        if run.masked:
            assert call.mask is not None
            hidden = forbidden(call.mask, rows, run, tile.b, tile.h)
            added = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            pieces.append((keys, added.masked_fill_(hidden, EMPTY)))
            empty &= hidden[0, 0].all(1)
    if call.biases:
        bias = _copy_bias(call, tile)
        for keys, piece in pieces:
            bias[..., keys] += piece
        pieces, empty = [(slice(0, at), bias)], (bias == EMPTY).all(-1)
    return _Pattern((tile.rows, tile.keys), tuple(pieces), empty if bool(empty.any()) else None)


def _copy_bias(call: AttentionCall, tile: Tile) -> Tensor:
    """Return a copy of the bias and slopes in a tile: [B|1, H|1, queries, keys]."""
    cols = torch.cat([torch.arange(run.lo, run.hi, device=call.q.device) for run in tile.runs])
    matrix = {dim: slice(at, at + 1) for dim, at in (("B", tile.b), ("H", tile.h)) if at is not None}
    bias = call.added(Q=slice(tile.q_lo, tile.q_hi), K=cols, **matrix)
    assert bias is not None
    return bias.expand(-1, -1, tile.rows, tile.keys).clone(memory_format=torch.contiguous_format)
