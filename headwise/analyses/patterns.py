"""Scores of heads on a random block that is repeated: previous token, duplicate token, induction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.analyses.stack import by_layer_and_head, named, self_attention
from headwise.errors import ArgumentError, RecordError
from headwise.records import AttentionRecord
from headwise.records.statistics import OffsetMass, Statistics

LEAST = 5  # queries from which a page or a profile says that a head has a pattern


@dataclass(frozen=True, eq=False)
class PatternScores:
    """Mean weights on three diagonals, each [L, H] with values from 0 to 1. See `pattern_scores`."""

    previous_token: Tensor
    duplicate_token: Tensor
    induction: Tensor


def repeated_block(
    vocab_size: int,
    length: int,
    batch: int = 1,
    *,
    seed: int = 0,
    bos: int | None = None,
    exclude: Sequence[int] = (),
) -> Tensor:
    """Make token ids of a random block and its repetition, for `pattern_scores`: [B, 2 · length], one more with `bos`.

    The tokens of a block are drawn without replacement, so that every token of the second half occurs exactly once
    before. Olsson et al. 2022 repeat 25 random tokens four times, after a token that starts the sequence.

    Args:
        vocab_size: ids are drawn from 0 … vocab_size - 1.
        length: T, the number of tokens of a block.
        batch: B; each example has its own block.
        seed: the same seed gives the same ids, on every device. They are on torch's default device.
        bos: an id that is put first. Models that were trained with such a token attend to it when no other token
            matters.
        exclude: ids that are not drawn (special tokens); `bos` is never drawn.

    Raises:
        ArgumentError: length or batch is less than 1, or there are fewer ids than the block needs.
    """
    if length < 1 or batch < 1:
        raise ArgumentError(
            f"repeated_block: length and batch must be at least 1. Received: length={length}, batch={batch}"
        )
    left_out = {*exclude, bos}
    ids = torch.tensor([i for i in range(vocab_size) if i not in left_out], dtype=torch.long, device="cpu")
    if len(ids) < length:
        raise ArgumentError(
            f"repeated_block: a block of length={length} needs as many different ids. "
            f"Received: vocab_size={vocab_size}, {len(ids)} ids without the excluded ones"
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randperm(len(ids), generator=generator, device="cpu")[:length] for _ in range(batch))
    block = torch.stack([ids[places] for places in drawn])
    start = block.new_full((batch, 0 if bos is None else 1), 0 if bos is None else bos)
    return torch.cat([start, block, block], dim=1).to(torch.get_default_device())


def pattern_scores(records: Iterable[AttentionRecord], length: int) -> PatternScores:
    """Compute previous-token, duplicate-token and induction scores of heads, on a block of T tokens and its repetition.

        previous_token   mean of A[i, i - 1]          over the rows that may see the token before
        duplicate_token  mean of A[i, i - T]          over the T rows of the second block
        induction        mean of A[i, i - (T - 1)]    over the T rows of the second block

    and over the examples. The induction score is the "prefix matching" of Olsson et al. 2022, "In-context Learning and
    Induction Heads": the weight on the token that followed the same token before. TransformerLens's demos have the same
    score (the mean of a diagonal), with one more cell, which lies in the first block. `detect_head` of TransformerLens
    is another score: the share of *all* of a head's attention, that of the first block included, on such cells; with
    one repetition it is about half as large.

    Args:
        records: a `Seen` or any sequence of self-attention records of a model that read `repeated_block(...)`: N
            tokens, the last 2 T of which are the blocks.
        length: T, the length of the block.

    Returns:
        A `PatternScores`, whose tensors are [L, H], with one row per record.

    Raises:
        RecordError: a record (the message names it) that is not self-attention or has fewer than 2 T tokens; or layers
            that differ in H.
        ArgumentError: no records, or length is less than 1.
    """
    layers = self_attention(records, "pattern_scores")
    if length < 1:
        raise ArgumentError(f"pattern_scores: length must be at least 1. Received: length={length}")
    for i, record in enumerate(layers):
        if record.shape[3] < 2 * length:
            raise RecordError(
                f"pattern_scores needs the block twice, at least {2 * length} tokens. Received: {named(record, i)} "
                f"with {record.shape[3]}. Give the model repeated_block(..., length={length})"
            )
    offsets = (1, length, length - 1)
    found = [record.statistics("lse", "offset_mass", offsets=offsets) for record in layers]

    def mean(which: int) -> Tensor:
        second = [each.offset_mass[:, :, -length:, which].mean((0, 2)) for each in found]
        return by_layer_and_head(second, "pattern_scores")

    previous = [(total / count).to(each.offset_mass.dtype) for each in found for total, count in [previous_token(each)]]
    return PatternScores(
        previous_token=by_layer_and_head(previous, "pattern_scores"), duplicate_token=mean(1), induction=mean(2)
    )


def previous_token(found: Statistics, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute (the sum of A[i, i - 1] over the queries that may see the token before, their number), [H] each.

    The page, the summary, profiles and `pattern_scores` show this quotient. `found`: "lse" and "offset_mass", whose
    first offset is 1; `real`: which queries are no padding, bool [B, Q]; None = all.
    """
    column = OffsetMass.column
    rows = column.rows(found.offset_mass, found.lse > -math.inf)
    rows = rows if real is None else rows & real[:, None].to(rows.device)
    count = rows.sum((0, 2))
    return (column.over(found.offset_mass, rows, (0, 2)) * count).nan_to_num(), count
