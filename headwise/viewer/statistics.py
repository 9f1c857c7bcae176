"""What each head does, in a few numbers: means over the queries of one example, from one pass over the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.analyses import head_importance
from headwise.analyses.stack import row_blocks
from headwise.options import EVERY
from headwise.records import AttentionRecord
from headwise.records.table import SHARE
from headwise.text import Tokens

Numbers = dict[str, list[float | None]]  # by key: a number for each head, None where there is none


@dataclass(frozen=True)
class Statistic:
    """What a number is, for whoever reads it."""

    key: str
    name: str
    unit: Literal["nats", "tokens", "share", "keys", "score"]
    about: str


STATISTICS = [
    asdict(each)
    for each in (
        Statistic("entropy", "entropy", "nats", "How widely a query spreads its attention: 0 looks at one key only."),
        Statistic("distance", "distance", "tokens", "How far from a query what it attends to lies, on average."),
        Statistic("previous", "previous token", "share", "The weight on the token just before the query."),
        Statistic("sink", "sink", "share", "The weight on the first key that any query may attend to."),
        Statistic("keys", "keys needed", "keys", f"The fewest keys that hold {SHARE:.0%} of a query's weight."),
        Statistic("strongest", "strongest pair", "share", "The largest weight of all."),
        Statistic(
            "induction",
            "induction",
            "share",
            "The weight on what followed the query's token earlier in this text, over the queries whose token came "
            "before (prefix matching, Olsson et al. 2022).",
        ),
        Statistic(
            "importance",
            "importance",
            "score",
            "How much the loss rests on the head, over the batch: |Σ O · ∂L/∂O| (Michel et al. 2019).",
        ),
    )
]


def cost(record: AttentionRecord) -> int:
    """How many weights the statistics of a record are made from."""
    return math.prod(record.shape)


def statistics_of(
    record: AttentionRecord, tokens: Mapping[int, Tokens], *, kind: str, rows: int | None = None
) -> dict[int, Numbers]:
    """The statistics of every head, for each example in `tokens`, which says what its columns stand for.

    They are estimated from about so many `rows`, evenly spread; None = made from all.

    Those that have no meaning are None: distances between two texts, induction where no token comes twice, importance
    where values and gradients were not kept.
    """
    means = _means(record, kind, rows)
    square = kind == "self" and record.shape[2] == record.shape[3]
    induction = _induction(record, tokens, rows) if square else {}
    nothing: list[float | None] = [None] * record.shape[1]
    importance = nothing
    if record.extras.v is not None and record.extras.grad is not None and not record.dropout:
        importance = _numbers(head_importance([record])[0])
    return {b: {**means[b], "induction": induction.get(b, nothing), "importance": importance} for b in sorted(tokens)}


def _means(record: AttentionRecord, kind: str, looked_at: int | None) -> list[Numbers]:
    """What one pass tells, for each example; means over the queries that attend to anything."""
    found = record.statistics(
        *("lse", "entropy", "distance", "offset_mass", "sink_share", "keys_needed", "top"),
        top=1,
        share=SHARE,
        rows=looked_at,
    )
    assert found.lse is not None
    assert found.offset_mass is not None
    assert found.top is not None
    attends = found.lse > -torch.inf  # NaN = not looked at
    rows: dict[str, Tensor | None] = {
        "entropy": found.entropy,
        "distance": found.distance if kind == "self" else None,
        "previous": found.offset_mass[..., 0] if kind == "self" else None,
        "sink": found.sink_share,
        "keys": found.keys_needed,
    }
    means: dict[str, Tensor] = {"strongest": found.top.weights.amax((2, 3))}
    for key, x in rows.items():
        total = torch.full_like(means["strongest"], math.nan) if x is None else x.sum(2)
        means[key] = total / attends.sum(2)
    return [{key: _numbers(mean[b]) for key, mean in means.items()} for b in range(record.shape[0])]


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
        at = torch.tensor(part, device=record.q.device)
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
