"""Attention over a list of tiles, forward and backward, on the CPU.

Each tile is one call of torch's fused CPU kernel, which also gives the log-sum-exp; given the whole row's output and
log-sum-exp, its backward gives the tile's exact share of the gradients (FlashAttention, Dao et al. 2022, section 3.2
and appendix B). Nothing outside the tiles is computed. A small tile that needs no log-sum-exp goes by way of its
scores, which then stay in the cache.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.kernel import cut_to_values, same_head_dims
from headwise.kernels.schedule import Schedule, Section, Tile, stays_in_cache

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def refuse(call: AttentionCall) -> str | None:
    """What no tiled kernel can do."""
    if call.q.device.type != "cpu":
        return f"it runs on the CPU (the call is on {call.q.device})"
    if call.dropout:
        return "it has no dropout"
    if call.softcap is not None:
        return "it has no softcap"
    if call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled():
        return "it gives no gradient to the bias"
    if 0 in call.shape:
        return "there are no queries or no keys"
    return None


def fused(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(scale · q kᵀ) v of [B, H, ·, D], and its log-sum-exp [B, H, Q]: torch's fused CPU kernel as it is."""
    out, lse = _forward(q, k, v, scale=scale)
    return out, lse


def run(call: AttentionCall, schedule: Schedule) -> Tensor:
    """The output [B, H, Q, E] of a call cut into tiles."""
    q, k, v = (_rows_in_one_piece(x) for x in same_head_dims(call, call.k, call.v))
    if call.trains:
        out = _Tiled.apply(q, k, v, call.sinks, call, schedule)
    else:
        out, _ = _attend(q, k, v, call.sinks, call, schedule, trains=False)
    return cut_to_values(call, out)


def _rows_in_one_piece(x: Tensor) -> Tensor:
    """x, copied if need be: the fused kernel takes any strides, but trusts that of the last dimension to be 1."""
    return x if x.stride(-1) == 1 else x.contiguous()


class _Tiled(torch.autograd.Function):
    """Ties the tiles' own backward to autograd."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: AttentionCall, schedule: Schedule
    ) -> Tensor:
        out, lse = _attend(q, k, v, sinks, call, schedule, trains=True)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.call, ctx.schedule = call, schedule
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        dq, dk, dv = _attend_backward(d_out, q, k, v, out, lse, ctx.call, ctx.schedule)
        d_sinks = None
        if sinks is not None:
            # The sink is a key whose value is 0: dL/ds = A (dA - Σ A dA), with dA = 0 and Σ A dA = dO · O.
            share = torch.exp(sinks.to(lse.dtype)[None, :, None] - lse)
            d_sinks = -(share * (d_out * out).sum(-1, dtype=lse.dtype)).sum((0, 2)).to(sinks.dtype)
        return dq, dk, dv, d_sinks, None, None


def _attend(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: AttentionCall, schedule: Schedule, *, trains: bool
) -> tuple[Tensor, Tensor]:
    """(out [B, H, Q, E], lse [B, H, Q]); lse is -inf for a query that attends to nothing, or where nobody needs it."""
    wide = torch.promote_types(q.dtype, torch.float32)
    shape = (*q.shape[:3], v.shape[-1])
    out = q.new_empty(shape) if schedule.covers(q.shape[2]) else q.new_zeros(shape)
    lse = q.new_full(q.shape[:3], -math.inf, dtype=wide)
    for part in _parts(call, schedule):
        if not trains and stays_in_cache(call, part.section, part.tile):
            part.queries(out).copy_(_weigh(part, q, k, v, call.scale))
            continue
        tile_out, tile_lse = _forward(
            *(part.queries(q), part.keys(k), part.keys(v), 0.0, part.tile.causal),
            attn_mask=part.pattern.additive,
            scale=call.scale,
        )
        if part.pattern.empty_rows is not None:  # the fused kernel calls their log-sum-exp 0
            tile_lse = tile_lse.masked_fill(part.pattern.empty_rows, -math.inf)
        if part.tile.shared:
            tile_out, tile_lse = _merge(part.queries(out), part.queries(lse), tile_out, tile_lse)
        part.queries(out).copy_(tile_out)
        part.queries(lse).copy_(tile_lse)
    if sinks is not None:
        total = torch.logaddexp(lse, sinks.to(wide)[None, :, None])
        out *= torch.exp(lse - total)[..., None].to(out.dtype)
        lse = total
    return out, lse


def _weigh(part: _Part, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The output of one tile [B, H, rows, E], by way of its weights."""
    q, k, v = part.queries(q), part.keys(k), part.keys(v)
    keys = k.flatten(0, 1).mT
    grouped = q.reshape(len(keys), -1, q.shape[3])  # the query heads of a key head below one another
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
    empty = part.pattern.empty_rows
    return out if empty is None else out.masked_fill(empty[..., None], 0.0)


def _merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from that over each: the outputs weighted by their shares of the sum."""
    total = torch.logaddexp(lse, more_lse)
    finite = total.masked_fill(total == -math.inf, 0.0)
    share, more_share = torch.exp(lse - finite)[..., None], torch.exp(more_lse - finite)[..., None]
    return out * share.to(out.dtype) + more_out * more_share.to(out.dtype), total


def _attend_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, call: AttentionCall, schedule: Schedule
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    dq = torch.zeros_like(q)
    dk, dv = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)  # many tiles add to one key
    lse = lse.masked_fill(lse == -math.inf, 0.0)
    for part in _parts(call, schedule):
        tile_dq, tile_dk, tile_dv = _backward(
            *(part.queries(d_out), part.queries(q), part.keys(k), part.keys(v), part.queries(out), part.queries(lse)),
            *(0.0, part.tile.causal),
            attn_mask=part.pattern.additive,
            scale=call.scale,
        )
        part.queries(dq).add_(tile_dq)
        part.add_to_keys(dk, tile_dk)
        part.add_to_keys(dv, tile_dv)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """The mask and bias of a tile."""

    shape: tuple[int, int]  # queries, keys
    pieces: tuple[tuple[slice, Tensor], ...] = ()  # keys of the tile, and what is added to their scores
    empty_rows: Tensor | None = None  # queries that may attend to nothing, [queries] or [B|1, H|1, queries], if any
    dead_keys: Tensor | None = None  # keys that the mask keeps from every query of the tile, [keys, 1], if any

    @functools.cached_property
    def additive(self) -> Tensor | None:
        """All pieces as one tensor that broadcasts to [B, H, queries, keys]; None = nothing is added."""
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
    """A tile of one section: cuts its queries and keys out of the call's tensors."""

    tile: Tile
    section: Section
    call: AttentionCall
    pattern: _Pattern

    def queries(self, x: Tensor) -> Tensor:
        """A view of the tile's queries in x [B, H, Q, ...]."""
        return self._section(x, self.section.h).narrow(2, self.tile.lo, self.tile.hi - self.tile.lo)

    def keys(self, x: Tensor) -> Tensor:
        """The tile's keys in x [B, G, K, ·]: a view where they are consecutive. Dead keys are replaced by 0."""
        x = self._section(x, self._key_head)
        runs = self.tile.runs
        if runs[-1].hi - runs[0].lo == self.tile.keys:
            x = x.narrow(2, runs[0].lo, self.tile.keys)
        else:
            x = torch.cat([x[:, :, run.lo : run.hi] for run in runs], dim=2)
        dead = self.pattern.dead_keys
        return x if dead is None else x.masked_fill(dead, 0.0)

    def add_to_keys(self, total: Tensor, x: Tensor) -> None:
        """Add the tile's gradient x to the keys [B, G, K, ·] it belongs to."""
        total = self._section(total, self._key_head)
        at = 0
        for run in self.tile.runs:
            total[:, :, run.lo : run.hi] += x[:, :, at : at + run.hi - run.lo]
            at += run.hi - run.lo

    @property
    def _key_head(self) -> int | None:
        return None if self.section.h is None else self.section.h // self.call.heads_per_key_head

    def _section(self, x: Tensor, head: int | None) -> Tensor:
        x = x if self.section.b is None else x[self.section.b : self.section.b + 1]
        return x if head is None else x[:, head : head + 1]


def _parts(call: AttentionCall, schedule: Schedule) -> Iterator[_Part]:
    """The tiles with their masks; a mask that is the same for many tiles is made once."""
    patterns: dict[Any, _Pattern] = {}
    for section in schedule.sections:
        for tile in section.tiles:
            if schedule.alike and call.bias is None:
                if tile.shape not in patterns:
                    patterns[tile.shape] = _pattern(call, section, tile)
                pattern = patterns[tile.shape]
            else:
                pattern = _pattern(call, section, tile)
            yield _Part(tile, section, call, pattern)


def _pattern(call: AttentionCall, section: Section, tile: Tile) -> _Pattern:
    shape, dtype, device = (tile.hi - tile.lo, tile.keys), call.q.dtype, call.q.device
    pieces: list[tuple[slice, Tensor]] = []
    some_rows, some_keys = torch.zeros(shape[0], dtype=torch.bool), torch.ones(shape[1], dtype=torch.bool)
    at, rows = 0, torch.arange(tile.lo, tile.hi, device=device)
    for run in tile.runs:
        keys = slice(at, at + run.hi - run.lo)
        at = keys.stop
        if run.masked:
            assert call.mask is not None
            cols = torch.arange(run.lo, run.hi, device=device)
            allowed = call.mask.cells(rows, cols, b=section.b, h=section.h)
            pieces.append((keys, torch.where(allowed, 0.0, -math.inf).to(dtype)))
            some_rows |= allowed[0, 0].any(1)
            some_keys[keys] = allowed[0, 0].any(0)
        else:
            some_rows |= True
    if call.bias is not None:
        bias = functools.reduce(_add_to_keys, pieces, _bias_of(call, section, tile).to(dtype))
        pieces, some_rows = [(slice(0, at), bias)], (bias != -math.inf).any(-1)
    return _Pattern(
        shape,
        tuple(pieces),
        None if bool(some_rows.all()) else ~some_rows,
        None if bool(some_keys.all()) else ~some_keys[:, None],
    )


def _add_to_keys(bias: Tensor, piece: tuple[slice, Tensor]) -> Tensor:
    """The bias of a tile with a piece of its mask."""
    keys, mask = piece
    width = bias.expand(*bias.shape[:2], mask.shape[2], -1)
    return torch.cat([width[..., : keys.start], width[..., keys] + mask, width[..., keys.stop :]], dim=-1)


def _bias_of(call: AttentionCall, section: Section, tile: Tile) -> Tensor:
    """The bias of a tile, [B|1, H|1, queries|1, keys]."""
    cols = torch.cat([torch.arange(run.lo, run.hi, device=call.q.device) for run in tile.runs])
    bias = call.bias_tile(slice(tile.lo, tile.hi), cols)
    bias = bias.expand(-1, -1, -1, tile.keys)
    if section.b is not None and bias.shape[0] > 1:
        bias = bias[section.b : section.b + 1]
    return bias if section.h is None or bias.shape[1] == 1 else bias[:, section.h : section.h + 1]
