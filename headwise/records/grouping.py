"""Attention between words, sentences or other groups of tokens, computed some rows at a time.

The weights on the tokens of a word add up to the weight on the word. The rows of the tokens of a word are averaged. So
each row of the result is a distribution, as each row of the weights is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from headwise.errors import ArgumentError, DtypeError, ShapeError, brief
from headwise.masks.bits import row_blocks
from headwise.records.record import AttentionRecord, check_one
from headwise.text import Groups

BLOCK_BYTES = 2**25  # bytes of weights at a time


def grouped(
    record: AttentionRecord,
    rows: Groups | Sequence[Groups] | None,
    cols: Groups | Sequence[Groups] | None,
    how: Literal["sum", "mean", "max"] = "sum",
) -> Tensor:
    """Compute the attention between groups of tokens, [B, H, R', C'], float32 or better.

    `rows` groups the queries and `cols` the keys: one `Groups` for all examples of the batch, a list with one `Groups`
    for each example, or None (every token is a group). R' and C' are the largest number of groups of any example; the
    other examples are filled with 0.

    `how` combines the weights A[i, j] of the queries i in group r and the keys j in group c:

        "sum"   mean over i of Σ_j A[i, j]: the share of its attention that word r gives to word c
        "mean"  mean over i and j: the weight from a token of r to a token of c
        "max"   the maximum over i and j

    "sum" is the attention between words of Clark et al. 2019, section 4.1; a row adds up to 1, as a row of the weights
    does (to less than 1 with learned sinks).

    The function needs one pass over the scores, and memory for the result and for some rows of weights at a time.

    Raises:
        ArgumentError: an unknown `how`.
        DtypeError: `record` is not one record, or `rows` or `cols` are not Groups.
        ShapeError: the groups have another number of tokens than the record, or there is not one for each example.
    """
    check_one(record, "grouped")
    if how not in ("sum", "mean", "max"):
        raise ArgumentError(f'grouped: how must be "sum", "mean" or "max". Received: how={how!r}')
    batch, heads, q_len, k_len = record.shape
    device = record.q.device
    row_group, row_sizes = _membership("rows", rows, batch, q_len, device)
    col_group, col_sizes = _membership("cols", cols, batch, k_len, device)
    dtype = record.call.dtype
    reduce = "amax" if how == "max" else "sum"
    out = torch.zeros(batch, heads, row_sizes.shape[1], col_sizes.shape[1], dtype=dtype, device=device)

    for part in row_blocks(record.shape, BLOCK_BYTES // dtype.itemsize):
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
    """Return the index of each token's group, [B, length], and each group's size in tokens, [B, groups], at least 1."""
    if groups is None:
        return torch.empty(batch, 0, dtype=torch.long, device=device), torch.ones(batch, length, device=device)
    each = [groups] * batch if isinstance(groups, Groups) else groups
    if not isinstance(each, (list, tuple)) or not all(isinstance(group, Groups) for group in each):
        raise DtypeError(
            f"grouped: {name} must be Groups (tokens.words()) or a list of them. Received: {name}={brief(groups)}"
        )
    if len(each) != batch:
        raise ShapeError(
            f"grouped: {name} must be Groups, or one for each of {batch} examples. Received: {name}={len(each)} Groups"
        )
    for i, group in enumerate(each):
        if len(group.index) != length:
            raise ShapeError(
                f"grouped: {name} must group the record's {length} tokens. Received: {name}={group.level} of "
                f"{len(group.index)} tokens for example {i}. Group the tokens that the model read, with padding"
            )
    index = torch.tensor([group.index for group in each], dtype=torch.long, device=device).view(batch, length)
    sizes = torch.zeros(batch, max(map(len, each), default=0), device=device)
    return index, sizes.scatter_add_(1, index, torch.ones_like(index, dtype=sizes.dtype)).clamp_(min=1)
