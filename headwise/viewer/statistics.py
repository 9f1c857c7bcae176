"""Computes the statistics of each head on the page: those of `headwise.records`, induction, and importance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from headwise import masks
from headwise.analyses import head_importance
from headwise.analyses.stack import blocks
from headwise.call import Scores
from headwise.native.attend import refuse
from headwise.records import AttentionRecord
from headwise.records.statistics import FirstVisible, OffsetMass, Statistics, columns
from headwise.records.summary import ask, numbers
from headwise.text import Tokens
from headwise.viewer.inputs import is_long

TOGETHER = 128  # positions of repeated tokens whose weights are computed at once

Numbers = dict[str, Any]  # key of a statistic -> a number for each head; None = undefined; and "supports"


# Statistics that are not in `headwise.records.statistics`, because they need tokens or gradients.
_OF_THE_PAGE = [
    {
        "key": "induction",
        "name": "induction",
        "unit": "share",
        "about": "The weight on tokens that followed earlier occurrences of the query's token, mean over queries with "
        "such occurrences (prefix matching, Olsson et al. 2022).",
    },
    {
        "key": "importance",
        "name": "importance",
        "unit": "score",
        "about": "The dependence of the loss on the head, over the batch: |Σ O · ∂L/∂O| (Michel et al. 2019).",
    },
]


def descriptions() -> list[dict[str, str]]:
    """Return the key, name, unit and description of each statistic that `compute_statistics` computes."""
    listed = [
        {"key": each.name, "name": each.title, "unit": each.unit, "about": each.sentence} for each in columns().values()
    ]
    return [*listed, *_OF_THE_PAGE]


def cost(record: AttentionRecord) -> int:
    """Return the number of weights from which the statistics of a record are computed."""
    return math.prod(record.shape)


def choose_rows(record: AttentionRecord, rows: int) -> int | None:
    """Return `rows` if statistics of so many rows are faster than statistics of all rows; else None.

    The native kernels process all rows in the time in which torch processes a quarter of them.
    """
    quick = 1 if refuse(record.call) else 4
    return None if record.shape[2] <= quick * rows else rows


def compute_statistics(
    record: AttentionRecord,
    tokens: Mapping[int, Tokens],
    *,
    kind: str,
    rows: int | None = None,
    queries: Mapping[int, Tokens] | None = None,
) -> dict[int, Numbers]:
    """Compute the statistics of every head. `tokens`: example -> the tokens of the columns; `queries`: of the rows.

    Estimated from about `rows` rows, evenly spread; None = computed from all rows.

    Undefined statistics are None: distances between two texts, induction without repeated tokens, importance without
    values and gradients.

    With `queries` there is also, as "supports", what suggestions need of each pattern: `values` without unknown tokens,
    the number of `queries` behind each, and `chance`: what a head with equal weights scores on the same text, or, if it
    is more, one whose queries all look at the same key.
    """
    found = ask(record, kind, rows=rows)
    means = numbers(found, kind, (2,))
    square = kind == "self" and record.shape[2] == record.shape[3]
    visible = _count_visible(record)
    induction = _induction(record, tokens, rows, visible) if square else {}
    supports = {} if queries is None else _supports(found, tokens, queries, 1 / visible)
    nothing: list[float | None] = [None] * record.shape[1]
    importance = nothing
    if record.extras.v is not None and record.extras.grad is not None and not record.dropout:
        importance = _numbers(head_importance([record])[0])
    return {
        b: {
            **{name: _numbers(of_heads[b]) for name, of_heads in means.items()},
            "induction": induction[b]["values"] if b in induction else nothing,
            "importance": importance,
            **({"supports": {**supports[b], "induction": induction.get(b)}} if supports else {}),
        }
        for b in sorted(tokens)
    }


def _count_visible(record: AttentionRecord) -> Tensor:
    """Count the keys that each query may attend to: [B, H or 1, Q]. Equal scores have the logarithm as normaliser."""
    call, (batch, heads, q_len, k_len) = record.call, record.shape
    bias = None if call.bias is None else call.bias.where(torch.isneginf(call.bias), 0.0)
    heads = heads if bias is not None or (call.mask is not None and call.mask.heads) else 1
    q, k = (call.q.new_zeros(batch, heads, length, 1) for length in (q_len, k_len))
    return AttentionRecord(Scores(q, k, mask=call.mask, bias=bias, share=call.share)).lse.exp()


def _supports(
    found: Statistics, tokens: Mapping[int, Tokens], queries: Mapping[int, Tokens], even: Tensor
) -> dict[int, dict[str, Any]]:
    """Find what supports the patterns of one key a query in each example. `even`: the weight of a key, if all equal."""
    supports: dict[int, dict[str, Any]] = {b: {} for b in tokens}
    for statistic in (OffsetMass, FirstVisible):
        column, answer = columns()[statistic], getattr(found, statistic.name)
        for b in tokens if answer is not None else ():
            known, keys = (~torch.tensor(x.unknown or [False] * len(x.ids)) for x in (queries[b], tokens[b]))
            known = known & keys.roll(1) if column.within_sequence and len(keys) == len(known) else known
            rows = column.rows(answer[b], found.lse[b] > -math.inf) & known.to(answer.device)
            values, chance = ((x[b] * rows).nan_to_num().sum(-1) / rows.sum(-1) for x in (column.values(answer), even))
            told = {"queries": rows.sum(-1).tolist(), "values": _numbers(values), "chance": _numbers(chance)}
            supports[b][column.name or statistic.name] = told
    return supports


def _induction(
    record: AttentionRecord, tokens: Mapping[int, Tokens], looked_at: int | None, visible: Tensor
) -> dict[int, dict[str, Any]]:
    """Compute prefix matching: the weight on tokens that follow earlier occurrences of the query's token.

    It is the mean over the queries whose token occurs earlier; from about `looked_at` of them, if given. Special and
    unknown tokens are ignored, because they are frequent and mean little; very long texts, because all their tokens
    occur again. Returned as in "supports" of `compute_statistics`.
    """
    found = {}
    for b, each in tokens.items():
        if is_long(each):
            continue
        repeated = _repeated(each)
        rows = sorted(row for places in repeated for row in places if row - places[0] >= 2)
        if looked_at is not None:
            rows = rows[:: -(-len(rows) // looked_at) or 1]
        if rows:
            one = _example(record, b)
            followed = [_followed(one, block, set(rows), visible[b]) for block in _joined(repeated)]
            values, even = (sum(sums) / len(rows) for sums in list(zip(*followed, strict=True))[:2])
            chance = even.clamp(min=max(most for _, _, most in followed) / len(rows)).expand(len(values))
            found[b] = {"queries": [len(rows)] * len(values), "values": _numbers(values), "chance": _numbers(chance)}
    return found


def _repeated(tokens: Tokens) -> list[list[int]]:
    """Return the positions of each token that occurs several times: a list for each such token.

    Special and unknown tokens are left out, and what stands before an unknown one.
    """
    names: tuple[int | str, ...] = tokens.ids if min(tokens.ids) >= 0 else tokens.labels
    places: dict[int | str, list[int]] = {}
    unknown = tokens.unknown or (False,) * len(names)
    for i, (name, *without) in enumerate(zip(names, tokens.special, unknown, (*unknown[1:], False), strict=True)):
        if not any(without):
            places.setdefault(name, []).append(i)
    return [each for each in places.values() if len(each) > 1]


def _joined(repeated: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Yield the positions of several tokens together: one small matrix for each token would take longer."""
    block: list[list[int]] = []
    for places in repeated:
        block.append(places)
        if sum(map(len, block)) >= TOGETHER or places is repeated[-1]:
            yield block
            block = []


def _followed(
    record: AttentionRecord, block: Sequence[list[int]], rows: Set[int], visible: Tensor
) -> tuple[Tensor, Tensor, int]:
    """Sum the weights of `rows` on tokens that followed earlier occurrences of the row's token, per head: [H].

    Also the sum with equal weights on the `visible` keys, and the most queries that have one such token in common.
    """
    device = record.q.device
    of = {place: number for number, places in enumerate(block) for place in places}
    cols = [place + 1 for place in of if place + 1 < record.shape[3]]
    keys, words_of_keys = (torch.tensor(x, device=device) for x in (cols, [of[col - 1] for col in cols]))
    total = torch.zeros(record.shape[1], dtype=record.call.dtype, device=device)
    even, asked = torch.zeros_like(visible[:, 0]), torch.zeros(len(cols), dtype=torch.long, device=device)
    for some in blocks([place for place in of if place in rows], record.shape[1] * len(cols) * total.itemsize):
        queries, words = (torch.tensor(x, device=device) for x in (some, [of[row] for row in some]))
        came_before = (words[:, None] == words_of_keys) & (keys < queries[:, None])
        total += (record.weights(some, cols)[0] * came_before).sum((1, 2))
        even += (came_before.sum(1) / visible[:, some]).sum(-1)
        asked += came_before.sum(0)
    return total, even, int(asked.max()) if cols else 0


def _example(record: AttentionRecord, b: int) -> AttentionRecord:
    """Return the record of one example of a batch."""
    if record.shape[0] == 1:
        return record
    mask = record.mask
    if mask is not None:
        places = (torch.arange(size, device=record.q.device) for size in record.shape[2:])
        mask = masks.from_tensor(mask.cells(*places, b=b))
    return AttentionRecord(dataclasses.replace(record.call.part(b=slice(b, b + 1)), mask=mask, places=None))


def _numbers(x: Tensor) -> list[float | None]:
    """Return the numbers of the heads as a list, rounded to five digits; None for NaN and infinities."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in x.tolist()]
