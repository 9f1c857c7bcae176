"""Compares the attention of two runs: how differently each head attends, on the tokens that both runs have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal, overload

import torch
from torch import Tensor

from headwise.analyses.stack import blocks, listed
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records import AttentionRecord, Seen
from headwise.records.record import positions
from headwise.text import as_tokens

Pairs = list[tuple[int, int]]  # positions in a and in b
LabelsOf = Callable[[AttentionRecord, int], tuple[Sequence[str], Sequence[str]]]
Align = Literal["tokens", "positions"]
Labels = tuple[LabelsOf | None, LabelsOf | None]  # for run a and for run b; None = the run has no tokens


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """How differently two runs attend in one layer: the result of `compare`. B is 1 if one example was chosen."""

    rows: Tensor  # [r, 2], the queries that were compared: (position in a, position in b)
    keys: Tensor  # [c, 2], the keys that were compared: (position in a, position in b)
    divergence: Tensor  # [B, H], the Jensen-Shannon divergence in nats, 0 … ln 2, mean over the rows
    row_divergence: Tensor  # [B, H, r], the divergence of each row
    total_variation: Tensor  # [B, H], ½ Σ |p - q|, mean over the rows: the share of attention that moved, 0 … 1

    def __repr__(self) -> str:
        (batch, heads), where = self.divergence.shape, f"{len(self.rows)} queries and {len(self.keys)} keys"
        if not self.divergence.numel():
            return f"Comparison(B={batch}, H={heads}, {where})"
        mean, largest, place = self.divergence.mean(), self.divergence.max(), int(self.divergence.argmax())
        example = f" of example {place // heads}" if batch > 1 else ""
        return (
            f"Comparison(B={batch}, H={heads}, {where}: divergence {mean:.3g} nats in the mean, at most {largest:.3g}, "
            f"in head {place % heads}{example})"
        )


@overload
def compare(
    a: AttentionRecord,
    b: AttentionRecord,
    tokens_a: Any = ...,
    tokens_b: Any = ...,
    *,
    align: Align = ...,
    example: int | None = ...,
) -> Comparison: ...


@overload
def compare(
    a: Iterable[AttentionRecord],
    b: Iterable[AttentionRecord],
    tokens_a: Any = ...,
    tokens_b: Any = ...,
    *,
    align: Align = ...,
    example: int | None = ...,
) -> list[Comparison]: ...


def compare(
    a: AttentionRecord | Iterable[AttentionRecord],
    b: AttentionRecord | Iterable[AttentionRecord],
    tokens_a: Any = None,
    tokens_b: Any = None,
    *,
    align: Align = "tokens",
    example: int | None = None,
) -> Comparison | list[Comparison]:
    """Measure how differently two runs attend, head by head: two inputs of one model, or one input of two models.

    Tokens that both runs have are matched in order (the longest common blocks, `difflib.SequenceMatcher`), or every
    position with the same one. Rows of other queries are left out. In each run, each shared row becomes a distribution
    (p, q) over the keys of both runs: where only one run has a key, the other one has 0. One more cell has the learned
    sink, and 1 if the query attends to nothing. The distance is the Jensen-Shannon divergence (Lin 1991)

        JSD = ½ Σ_j p_j log(p_j / m_j) + ½ Σ_j q_j log(q_j / m_j),    m = (p + q) / 2

    in nats: 0 if the rows are equal, ln 2 if they share no key. Rows are compared a block at a time.

    Args:
        a, b: two records, or two `Seen`s (or sequences of records), compared layer by layer.
        tokens_a, tokens_b: the tokens of each run's self-attention, to align by: a value for `headwise.text.as_tokens`,
            such as a list of strings, `Tokens`, or the output of a tokenizer; for one example, or for each example.
            None = the tokens of the two `Seen`s, if they have any; otherwise the rows are aligned by position.
        align: "tokens", or "positions": by position, whatever the tokens are, as patching does. Then both need the same
            lengths.
        example: compare only this example of the batch; None = all examples, which must have the same alignment.

    Returns:
        A Comparison; for two sequences a list, one for each pair of layers.

    Raises:
        RecordError: two records that differ in B or H, or in length where there are no tokens; tokens that do not fit.
        ArgumentError: tokens for only one of them, or no token in common; examples with different alignments;
            sequences of different lengths; example out of range; an unknown `align`.
        DtypeError: an argument of another type than described here.
    """
    if align not in ("tokens", "positions"):
        raise ArgumentError(f'align must be "tokens" or "positions". Received: align={align!r}')
    labels = (_labels_by(a, tokens_a), _labels_by(b, tokens_b)) if align == "tokens" else (None, None)
    if (labels[0] is None) != (labels[1] is None):
        missing = "tokens_a" if labels[0] is None else "tokens_b"
        raise ArgumentError(f"compare needs the tokens of both runs, or of neither. Received: {missing}=None")
    if isinstance(a, AttentionRecord) and isinstance(b, AttentionRecord):
        return _compare(a, b, labels, example, "the records")
    if isinstance(a, AttentionRecord) or isinstance(b, AttentionRecord):
        received = f"a={type(a).__name__}, b={type(b).__name__}"
        raise DtypeError(f"compare needs two records, or two sequences of records. Received: {received}")
    first, second = listed(a, "compare"), listed(b, "compare")
    if len(first) != len(second):
        received = f"len(a)={len(first)}, len(b)={len(second)}"
        raise ArgumentError(f"compare needs the same number of layers in both. Received: {received}")
    return [_compare(first[i], second[i], labels, example, f"records {i}") for i in range(len(first))]


def _compare(a: AttentionRecord, b: AttentionRecord, labels: Labels, example: int | None, which: str) -> Comparison:
    if a.shape[:2] != b.shape[:2]:
        received = f"a={list(a.shape[:2])}, b={list(b.shape[:2])}"
        raise RecordError(f"compare needs the same B and H in both. Received: {which} with {received}")
    examples = positions(example, a.shape[0], "example")
    if not examples:
        raise ArgumentError(f"compare: example must be one of the batch. Received: example={example}, B={a.shape[0]}")
    rows, keys = _align(a, b, labels, examples[0], which)
    if any(_align(a, b, labels, other, which) != (rows, keys) for other in examples[1:]):
        raise ArgumentError("compare: the examples are aligned differently. Received: example=None. Choose one")
    dtype = torch.promote_types(a.call.dtype, b.call.dtype)
    divergence, moved = [], []
    row_bytes = a.shape[0] * a.shape[1] * max(a.shape[3], b.shape[3]) * dtype.itemsize
    for part in blocks(range(len(rows)), row_bytes):
        p, own_p = _on_keys(a, examples, [rows[i][0] for i in part], [key for key, _ in keys], dtype)
        q, own_q = _on_keys(b, examples, [rows[i][1] for i in part], [key for _, key in keys], dtype)
        # A key that only one run has adds ½ p ln 2, so that all of them are one cell.
        p, q = (torch.cat([p, own_p, 0 * own_p], -1), torch.cat([q, 0 * own_q, own_q], -1).to(p))
        divergence.append(_jensen_shannon(p, q))
        moved.append((p - q).abs().sum(-1) / 2)
    by_row = torch.cat(divergence, dim=2)
    return Comparison(
        rows=torch.tensor(rows, device=by_row.device),
        keys=torch.tensor(keys, device=by_row.device),
        divergence=by_row.mean(-1),
        row_divergence=by_row,
        total_variation=torch.cat(moved, dim=2).mean(-1),
    )


def _align(a: AttentionRecord, b: AttentionRecord, labels: Labels, example: int, which: str) -> tuple[Pairs, Pairs]:
    """Match the queries and the keys of two records; return each as pairs (position in a, position in b)."""
    of_a, of_b = labels
    if of_a is None or of_b is None:
        if a.shape[2:] != b.shape[2:]:
            raise RecordError(
                "compare aligns by position without tokens, or with align='positions', and needs the same Q and K. "
                f"Received: {which} with a={list(a.shape[2:])}, b={list(b.shape[2:])}. Pass tokens_a= and tokens_b="
            )
        return [(i, i) for i in range(a.shape[2])], [(j, j) for j in range(a.shape[3])]
    (rows_a, keys_a), (rows_b, keys_b) = of_a(a, example), of_b(b, example)
    rows, keys = _matched(rows_a, rows_b), _matched(keys_a, keys_b)
    if not rows or not keys:
        raise ArgumentError(f"compare needs at least one token in common. Received: {which}, which have none")
    return rows, keys


def _labels_by(run: object, tokens: Any) -> LabelsOf | None:
    """Return the function (record, example) -> (tokens of the queries, tokens of the keys); None without tokens."""
    if tokens is None:
        if not isinstance(run, Seen) or (run.tokens is None and run.source_tokens is None):
            return None
        return lambda record, b: (run.row_labels(record, b) or (), run.col_labels(record, b) or ())
    given = as_tokens(tokens)

    def labels(record: AttentionRecord, b: int) -> tuple[Sequence[str], Sequence[str]]:
        batch, _, q_len, k_len = record.shape
        if len(given) not in (1, batch):
            raise RecordError(
                f"tokens must be those of one example, or of all {batch}. Received: len(tokens)={len(given)}"
            )
        found = given[b if len(given) > 1 else 0].labels
        if not len(found) == q_len == k_len:
            raise RecordError(
                "tokens must be one for each query and key of self-attention. "
                f"Received: {len(found)} tokens, Q={q_len}, K={k_len}"
            )
        return found, found

    return labels


def _matched(a: Sequence[str], b: Sequence[str]) -> Pairs:
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    return [(match.a + i, match.b + i) for match in matcher.get_matching_blocks() for i in range(match.size)]


def _on_keys(
    record: AttentionRecord, examples: list[int], rows: list[int], keys: list[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute the weights of some queries: [B, H, r, c + 1] on `keys` and the learned sink, [B, H, r, 1] on other keys.

    A query that attends to nothing has 1 in the place of the sink.
    """
    weights = record.weights(rows=rows)[examples].to(dtype)
    is_shared = torch.zeros(weights.shape[3], dtype=torch.bool, device=weights.device)
    is_shared[keys] = True
    total = weights.sum(-1, keepdim=True)
    # Only with a learned sink, or in an empty row, the sum is not 1; otherwise the difference is rounding.
    left = (total == 0).to(total.dtype) if record.sinks is None else (1.0 - total).clamp(min=0.0)
    return torch.cat([weights[..., keys], left], dim=-1), weights[..., ~is_shared].sum(-1, keepdim=True)


def _jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Compute JSD(p, q) over the last dimension, from t = (p - q) / (p + q) = p / m - 1: equal cells give exactly 0."""
    both = p + q
    t = ((p - q) / both.masked_fill(both == 0, 1.0)).clamp(-1.0, 1.0)
    cell = torch.special.xlog1py(1.0 + t, t) + torch.special.xlog1py(1.0 - t, -t)
    return (both * cell).sum(-1).div(4.0).clamp(min=0.0)
