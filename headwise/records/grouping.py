"""Attention between words, sentences or any other groups of tokens, worked out some rows at a time.

The weights to the tokens of a word add up to what the word is given; the rows of its tokens are averaged, so that each
row of the result is a distribution as each row of the weights is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.records.record import AttentionRecord
from headwise.text import Groups

BLOCK_BYTES = 2**25  # what a row block of weights may take


def grouped(
    record: AttentionRecord,
    rows: Groups | Sequence[Groups] | None,
    cols: Groups | Sequence[Groups] | None,
    how: Literal["sum", "mean", "max"] = "sum",
) -> Tensor:
    """The attention between groups of tokens, [B, H, R', C'], float32 or better.

    `rows` divides the queries, `cols` the keys: one division for all examples of the batch, or a list of one for each,
    or None: every token by itself. Where examples have different numbers of groups, R' and C' are the largest, and
    what an example lacks is 0.

    `how` says what becomes of the weights A[i, j] of the queries i in group r and the keys j in group c:

        "sum"   mean over i of Σ_j A[i, j]: how much of its attention the one word gives to the other
        "mean"  mean over i and j: how much one token of the one gives to one token of the other
        "max"   the largest

    "sum" is how Clark et al. 2019, section 4.1, get attention between words: what a row gave away in all stays the
    same, 1 where no token is left out and there is no sink.

    It takes one pass over the scores and an addition for each, and memory for the result and some rows of weights,
    which are never all there. (With None for both, the result is all weights.)

    Raises:
        ArgumentError: `how` is none of these.
        DtypeError: something else than Groups.
        ShapeError: groups of another number of tokens than the record has, or another number of them than examples.
    """
    if how not in ("sum", "mean", "max"):
        raise ArgumentError(f'grouped: how must be "sum", "mean" or "max". Received: {how!r}')
    batch, heads, q_len, k_len = record.shape
    device = record.q.device
    row_group, row_sizes = _membership("rows", rows, batch, q_len, device)
    col_group, col_sizes = _membership("cols", cols, batch, k_len, device)
    dtype = torch.promote_types(record.q.dtype, torch.float32)
    reduce = "amax" if how == "max" else "sum"
    out = torch.zeros(batch, heads, row_sizes.shape[1], col_sizes.shape[1], dtype=dtype, device=device)

    step = max(1, BLOCK_BYTES // max(1, batch * heads * k_len * dtype.itemsize))
    for start in range(0, q_len, step):
        part = slice(start, min(q_len, start + step))
        tile = record.weights(rows=part)
        if cols is not None:
            index = col_group[:, None, None, :].expand_as(tile)
            tile = tile.new_zeros(*tile.shape[:3], out.shape[3]).scatter_reduce_(3, index, tile, reduce)
        if rows is None:
            out[:, :, part] = tile
        else:
            out.scatter_reduce_(2, row_group[:, None, part, None].expand_as(tile), tile, reduce)

    if how != "max" and rows is not None:
        out /= row_sizes[:, None, :, None]
    if how == "mean" and cols is not None:
        out /= col_sizes[:, None, None, :]
    return out


def _membership(
    name: str, groups: Groups | Sequence[Groups] | None, batch: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The group of each token, [B, length], and how many tokens each has, [B, groups], 1 where there is none."""
    if groups is None:
        return torch.empty(batch, 0, dtype=torch.long, device=device), torch.ones(batch, length, device=device)
    each = [groups] * batch if isinstance(groups, Groups) else groups
    if not isinstance(each, (list, tuple)) or not all(isinstance(group, Groups) for group in each):
        raise DtypeError(
            f"{name}: expected Groups or a list of them, of tokens.words(). Received: {type(groups).__name__}"
        )
    if len(each) != batch:
        raise ShapeError(f"{name}: expected Groups, or {batch} of them, one an example. Received: {len(each)}")
    for i, group in enumerate(each):
        if len(group.index) != length:
            raise ShapeError(
                f"{name}: expected groups of the record's {length} tokens. Received: {group.level} of "
                f"{len(group.index)} tokens for example {i}; take them from the tokens the model read, padding included"
            )
    index = torch.tensor([group.index for group in each], dtype=torch.long, device=device).view(batch, length)
    sizes = torch.zeros(batch, max(map(len, each), default=0), device=device)
    return index, sizes.scatter_add_(1, index, torch.ones_like(index, dtype=sizes.dtype)).clamp_(min=1)
