"""The numbers of each head on the page: the statistics with a column, induction and importance, for each example."""

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

Numbers = dict[str, list[float | None]]  # by key: a number for each head; None = undefined


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
    """The key, name, unit and description of each number of `statistics_of`."""
    listed = [
        {"key": each.name, "name": each.title, "unit": each.unit, "about": each.sentence} for each in columns().values()
    ]
    return [*listed, *_OF_THE_PAGE]


def cost(record: AttentionRecord) -> int:
    """The number of weights from which the statistics of a record are computed."""
    return math.prod(record.shape)


def statistics_of(
    record: AttentionRecord, tokens: Mapping[int, Tokens], *, kind: str, rows: int | None = None
) -> dict[int, Numbers]:
    """The statistics of every head, for each example in `tokens`, the tokens of the columns.

    They are estimated from about `rows` rows, evenly spread; None = computed from all rows.

    Undefined statistics are None: distances between two texts, induction without repeated tokens, importance without
    values and gradients.
    """
    means = numbers(ask(record, kind, rows=rows), kind, (2,))
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
    """Prefix matching: the weight on tokens that followed earlier occurrences of the query's token, mean over queries
    with such occurrences.

    Only tokens before the query count. Special tokens are ignored, because they are frequent and mean little.
    """
    batch, heads, length, _ = record.shape
    words = torch.arange(-batch * length, 0).view(batch, length)  # all different
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
    """The numbers of the heads, rounded to five digits."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in x.tolist()]
