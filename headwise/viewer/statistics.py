"""The numbers of each head on the page: the statistics with a column, for each example, and two that need more."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.analyses import head_importance
from headwise.analyses.stack import row_blocks
from headwise.options import EVERY
from headwise.records import AttentionRecord
from headwise.records.statistics import columns
from headwise.records.summary import ask, numbers
from headwise.text import Tokens

Numbers = dict[str, list[float | None]]  # by key: a number for each head, None where there is none


# The statistics beyond the list of `headwise.records.statistics`: they need tokens or gradients.
_OF_THE_PAGE = [
    {
        "key": "induction",
        "name": "induction",
        "unit": "share",
        "about": "The weight on what followed the query's token earlier in this text, over the queries whose token "
        "came before (prefix matching, Olsson et al. 2022).",
    },
    {
        "key": "importance",
        "name": "importance",
        "unit": "score",
        "about": "How much the loss depends on the head, over the batch: |Σ O · ∂L/∂O| (Michel et al. 2019).",
    },
]


def descriptions() -> list[dict[str, str]]:
    """What each number of `statistics_of` is: its key, its name and unit, and a sentence about it."""
    listed = [
        {"key": each.name, "name": each.title, "unit": each.unit, "about": each.sentence} for each in columns().values()
    ]
    return [*listed, *_OF_THE_PAGE]


def cost(record: AttentionRecord) -> int:
    """How many weights the statistics of a record are made from."""
    return math.prod(record.shape)


def statistics_of(
    record: AttentionRecord, tokens: Mapping[int, Tokens], *, kind: str, rows: int | None = None
) -> dict[int, Numbers]:
    """The statistics of every head, for each example in `tokens`, which has the tokens of its columns.

    They are estimated from about so many `rows`, evenly spread; None = made from all.

    Those without meaning are None: distances between two texts, induction where no token comes twice, importance where
    values and gradients were not kept.
    """
    means = numbers(ask(record, rows=rows), kind, (2,))
    square = kind == "self" and record.shape[2] == record.shape[3]
    induction = _induction(record, tokens, rows) if square else {}
    nothing: list[float | None] = [None] * record.shape[1]
    importance = nothing
    if record.extras.v is not None and record.extras.grad is not None and not record.dropout:
        importance = _numbers(head_importance([record])[0])
    return {
        b: {
            **{name: _numbers(of_heads[b]) for name, of_heads in means.items()},
            "induction": induction.get(b, nothing),
            "importance": importance,
        }
        for b in sorted(tokens)
    }


def _induction(
    record: AttentionRecord, tokens: Mapping[int, Tokens], looked_at: int | None
) -> dict[int, list[float | None]]:
    """Prefix matching: the weight on what followed a query's token earlier, its mean over the queries that have such.

    What followed is a token before the query itself. Special tokens, which come often and say little, do not count.
    """
    batch, heads, length, _ = record.shape
    words = torch.arange(-batch * length, 0).view(batch, length)  # no two alike
    counts = {}
    for b, each in tokens.items():
        first: dict[int | str, int] = {}
        names: tuple[int | str, ...] = each.ids if min(each.ids) >= 0 else each.labels
        for i, (name, special) in enumerate(zip(names, each.special, strict=True)):
            if not special:
                words[b, i] = first.setdefault(name, i)
        counts[b] = (torch.arange(length) - words[b] >= 2) & (words[b] >= 0)
    rows = torch.stack(list(counts.values())).any(0).nonzero()[:, 0].tolist()
    if looked_at is not None:
        rows = rows[:: -(-len(rows) // looked_at) or 1]
    total = torch.zeros(batch, heads, device=record.q.device)
    words = words.to(record.q.device)
    for part in row_blocks(record, rows):
        at = torch.tensor(part, dtype=torch.long, device=record.q.device)
        came_before = (words[:, at, None] == words[:, None, :-1]) & (
            torch.arange(1, length, device=at.device) < at[:, None]
        )
        followed = record.weights(part, EVERY)[..., 1:] * came_before[:, None]
        total += followed.sum((2, 3))
    found = {b: int(count[rows].sum()) for b, count in counts.items()}
    return {b: _numbers(total[b] / count) for b, count in found.items() if count}


def _numbers(x: Tensor) -> list[float | None]:
    """The numbers of the heads to five digits, which is more than anybody reads."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in x.tolist()]
