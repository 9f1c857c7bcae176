"""Attention over a list of tiles, forward and backward, on the CPU's fused kernel.

A tile is some consecutive queries and the only keys they need. Each is one call of torch's fused CPU kernel, which
also gives the log-sum-exp; given the whole row's output and log-sum-exp, its backward gives the tile's exact share of
the gradients (FlashAttention, Dao et al. 2022, section 3.2 and appendix B). Nothing outside the tiles is computed.

The kernels that use this differ only in how they cut a mask into tiles.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.call import AttentionCall
from headwise.kernels.kernel import (
    BYTES_PER_SECOND,
    FLOPS_PER_SECOND,
    SECONDS_PER_CALL,
    Blocks,
    Cost,
    input_output_bytes,
    matrix_flops,
    output_bytes,
)

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Run(NamedTuple):
    """Consecutive keys [lo, hi) of a tile. `masked`: some pair may be forbidden, so the mask must be evaluated."""

    lo: int
    hi: int
    masked: bool


class Tile(NamedTuple):
    """Queries [lo, hi) and the keys they need, in order. `causal`: a square on the diagonal, causal within."""

    lo: int
    hi: int
    runs: tuple[Run, ...]
    causal: bool = False

    @property
    def keys(self) -> int:
        return sum(run.hi - run.lo for run in self.runs)

    @property
    def cells(self) -> int:
        """The cells that are computed."""
        rows = self.hi - self.lo
        return rows * (rows + 1) // 2 if self.causal else rows * self.keys


class Section(NamedTuple):
    """The tiles of one example and one head; None = the same for all."""

    b: int | None
    h: int | None
    tiles: tuple[Tile, ...]


# Keys are taken in blocks of this many: small enough to follow a mask closely.
WIDTH = 64

# Queries in a tile, and the share of the speed of large matrix products that the fused kernel reaches with that many,
# over up to 2048 keys and over more (12 heads of 64 on two cores; over many keys, low tiles read each key too often).
HEIGHTS = {768: (0.95, 0.95), 256: (0.90, 0.80), 64: (0.85, 0.70)}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """All that will be computed. Queries that are in no tile attend to nothing."""

    sections: tuple[Section, ...]
    blocks: Blocks | None = None

    def time(self, call: AttentionCall) -> float:
        """Nominal seconds in matrix products and calls into torch."""
        seconds = 0.0
        calls_for_mask = 0 if _looks_alike_everywhere(call) else 2
        for section in self.sections:
            matrices = matrix_flops(call, self._heads(call, section))
            for tile in section.tiles:
                few_keys, many_keys = next(HEIGHTS[h] for h in HEIGHTS if tile.hi - tile.lo >= h or h == min(HEIGHTS))
                speed = FLOPS_PER_SECOND * (few_keys if tile.keys <= 2048 else many_keys)
                masked = any(run.masked for run in tile.runs)
                seconds += tile.cells * matrices / speed + SECONDS_PER_CALL * (1 + calls_for_mask * masked)
        return seconds

    def cells(self, call: AttentionCall) -> int:
        """The computed cells of the [B, H, Q, K] matrix."""
        return sum(self._heads(call, section) * sum(tile.cells for tile in section.tiles) for section in self.sections)

    @staticmethod
    def _heads(call: AttentionCall, section: Section) -> int:
        """How many matrices of the [B, H] the section's tiles are cut from."""
        batch, heads = call.q.shape[:2]
        return (batch if section.b is None else 1) * (heads if section.h is None else 1)


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


def cost(call: AttentionCall, schedule: Schedule) -> Cost:
    """The cost of a schedule: its cells, the keys its tiles read, and their masks."""
    moved, largest = input_output_bytes(call), 0
    for section in schedule.sections:
        for tile in section.tiles:
            keys = tile.keys * (call.k.shape[-1] + call.v.shape[-1]) * call.q.element_size() * call.k.shape[1]
            mask = (tile.hi - tile.lo) * tile.keys * call.q.element_size() if any(r.masked for r in tile.runs) else 0
            moved, largest = moved + keys + mask, max(largest, keys + mask)
    time = schedule.time(call) + input_output_bytes(call) / BYTES_PER_SECOND
    return Cost(matrix_flops(call, schedule.cells(call)), moved, output_bytes(call) + largest, time, schedule.blocks)


def quickest(call: AttentionCall, schedules: Iterable[Schedule]) -> Schedule:
    """The schedule that should take the least time."""
    return min(schedules, key=lambda schedule: schedule.time(call))


def run(call: AttentionCall, schedule: Schedule) -> Tensor:
    """The output [B, H, Q, E] of a call cut into tiles."""
    q, k, v, width = _as_the_kernel_wants(call)
    if call.trains:
        out = _Tiled.apply(q, k, v, call.sinks, call, schedule)
    else:
        out, _ = _attend(q, k, v, call.sinks, call, schedule)
    return out[..., :width]


def runs_of(codes: list[int], width: int, length: int) -> tuple[Run, ...]:
    """The runs of one row of blocks from its extent codes (0 none, 1 some, 2 all); equal neighbours are joined."""
    runs = []
    for code, group in itertools.groupby(range(len(codes)), key=codes.__getitem__):
        if code:
            columns = list(group)
            runs.append(Run(columns[0] * width, min(length, (columns[-1] + 1) * width), code == 1))
    return tuple(runs)


def _as_the_kernel_wants(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor, int]:
    """q, k and v with zeros added until D == E, their rows in one piece; and the width E of the output."""
    q, k, v = call.q, call.k, call.v
    d, e = q.shape[-1], v.shape[-1]
    if d < e:
        q, k = pad(q, (0, e - d)), pad(k, (0, e - d))
    elif e < d:
        v = pad(v, (0, d - e))
    return _rows_in_one_piece(q), _rows_in_one_piece(k), _rows_in_one_piece(v), e


def _rows_in_one_piece(x: Tensor) -> Tensor:
    """x, copied if need be: the fused kernel takes any strides, but trusts that of the last dimension to be 1."""
    return x if x.stride(-1) == 1 else x.contiguous()


class _Tiled(torch.autograd.Function):
    """Ties the tiles' own backward to autograd."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: AttentionCall, schedule: Schedule
    ) -> Tensor:
        out, lse = _attend(q, k, v, sinks, call, schedule)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.call, ctx.schedule = call, schedule
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        d_out = _rows_in_one_piece(d_out)
        dq, dk, dv = _attend_backward(d_out, q, k, v, out, lse, ctx.call, ctx.schedule)
        d_sinks = None
        if sinks is not None:
            # The sink is a key whose value is 0: dL/ds = A (dA - Σ A dA), with dA = 0 and Σ A dA = dO · O.
            share = torch.exp(sinks.to(lse.dtype)[None, :, None] - lse)
            d_sinks = -(share * (d_out * out).sum(-1, dtype=lse.dtype)).sum((0, 2)).to(sinks.dtype)
        return dq, dk, dv, d_sinks, None, None


def _attend(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: AttentionCall, schedule: Schedule
) -> tuple[Tensor, Tensor]:
    """(out [B, H, Q, E], lse [B, H, Q]); lse is -inf for a query that attends to nothing."""
    wide = torch.promote_types(q.dtype, torch.float32)
    out = q.new_zeros((*q.shape[:3], v.shape[-1]))
    lse = q.new_full(q.shape[:3], -math.inf, dtype=wide)
    for tile, part in _parts(call, schedule):
        keys, values = part.keys(k), part.keys(v)
        tile_out, tile_lse = _forward(
            part.queries(q), keys, values, 0.0, tile.causal, attn_mask=part.additive, scale=call.scale
        )
        if part.empty_rows is not None:  # the fused kernel calls their log-sum-exp 0
            tile_lse = tile_lse.masked_fill(part.empty_rows, -math.inf)
        part.queries(out).copy_(tile_out)
        part.queries(lse).copy_(tile_lse)
    if sinks is not None:
        total = torch.logaddexp(lse, sinks.to(wide)[None, :, None])
        out *= torch.exp(lse - total)[..., None].to(out.dtype)
        lse = total
    return out, lse


def _attend_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, call: AttentionCall, schedule: Schedule
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    dq = torch.zeros_like(q)
    dk, dv = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)  # many tiles add to one key
    lse = lse.masked_fill(lse == -math.inf, 0.0)
    for tile, part in _parts(call, schedule):
        tile_dq, tile_dk, tile_dv = _backward(
            *(part.queries(d_out), part.queries(q), part.keys(k), part.keys(v), part.queries(out), part.queries(lse)),
            *(0.0, tile.causal),
            attn_mask=part.additive,
            scale=call.scale,
        )
        part.queries(dq).copy_(tile_dq)
        part.add_to_keys(dk, tile_dk)
        part.add_to_keys(dv, tile_dv)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """The mask and bias of a tile."""

    additive: Tensor | None  # what is added to the scores, [queries, keys] or rank 4; None = nothing
    empty_rows: Tensor | None  # queries that may attend to nothing, where there are any
    dead_keys: Tensor | None  # keys that no query of the tile may attend to, where there are any


@dataclasses.dataclass(frozen=True)
class _Part:
    """A tile of one section: cuts its queries and keys out of the call's tensors."""

    tile: Tile
    section: Section
    heads_per_key_head: int
    pattern: _Pattern

    @property
    def additive(self) -> Tensor | None:
        return self.pattern.additive

    @property
    def empty_rows(self) -> Tensor | None:
        return self.pattern.empty_rows

    def queries(self, x: Tensor) -> Tensor:
        """A view of the tile's queries in x [B, H, Q, ...]."""
        return self._section(x, self.section.h)[:, :, self.tile.lo : self.tile.hi]

    def keys(self, x: Tensor) -> Tensor:
        """The tile's keys in x [B, G, K, ·]: a view where they are consecutive. Dead keys are replaced by 0."""
        x = self._section(x, self._key_head)
        runs = self.tile.runs
        if runs[-1].hi - runs[0].lo == self.tile.keys:
            x = x[:, :, runs[0].lo : runs[-1].hi]
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
        return None if self.section.h is None else self.section.h // self.heads_per_key_head

    def _section(self, x: Tensor, head: int | None) -> Tensor:
        x = x if self.section.b is None else x[self.section.b : self.section.b + 1]
        return x if head is None else x[:, head : head + 1]


def _parts(call: AttentionCall, schedule: Schedule) -> Iterator[tuple[Tile, _Part]]:
    """The tiles with their masks. A band looks the same from every tile, so its few patterns are made once."""
    patterns: dict[Any, _Pattern] = {}
    alike = _looks_alike_everywhere(call)
    for section in schedule.sections:
        for tile in section.tiles:
            if alike:
                seen_from_tile = (tile.hi - tile.lo, *((r.lo - tile.lo, r.hi - tile.lo, r.masked) for r in tile.runs))
                if seen_from_tile not in patterns:
                    patterns[seen_from_tile] = _pattern(call, section, tile)
                pattern = patterns[seen_from_tile]
            else:
                pattern = _pattern(call, section, tile)
            yield tile, _Part(tile, section, call.heads_per_key_head, pattern)


def _looks_alike_everywhere(call: AttentionCall) -> bool:
    return call.bias is None and call.mask is not None and call.mask.band() is not None


def _pattern(call: AttentionCall, section: Section, tile: Tile) -> _Pattern:
    masked = any(run.masked for run in tile.runs)
    if not masked and call.bias is None:
        return _Pattern(None, None, None)
    dtype, device = call.q.dtype, call.q.device
    additive = torch.zeros((1, 1, tile.hi - tile.lo, tile.keys), dtype=dtype, device=device)
    if call.bias is not None:
        additive = additive + _bias_of(call, section, tile).to(dtype)
    if not masked:
        return _Pattern(additive, None, None)
    assert call.mask is not None
    at, rows = 0, torch.arange(tile.lo, tile.hi, device=device)
    allowed = torch.ones(additive.shape[2:], dtype=torch.bool, device=device)
    for run in tile.runs:
        width = run.hi - run.lo
        if run.masked:
            cols = torch.arange(run.lo, run.hi, device=device)
            allowed[:, at : at + width] = call.mask.cells(rows, cols, b=section.b, h=section.h)[0, 0]
        at += width
    empty_rows, dead_keys = ~allowed.any(1), ~allowed.any(0)
    return _Pattern(
        additive.masked_fill(~allowed, -math.inf),
        empty_rows if bool(empty_rows.any()) else None,
        dead_keys[:, None] if bool(dead_keys.any()) else None,
    )


def _bias_of(call: AttentionCall, section: Section, tile: Tile) -> Tensor:
    cols = torch.cat([torch.arange(run.lo, run.hi, device=call.q.device) for run in tile.runs])
    bias = call.bias_tile(slice(tile.lo, tile.hi), cols)
    if section.b is not None and bias.shape[0] > 1:
        bias = bias[section.b : section.b + 1]
    return bias if section.h is None or bias.shape[1] == 1 else bias[:, section.h : section.h + 1]
