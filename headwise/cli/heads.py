"""The table of heads: what each head does with a text, in five numbers and a pair of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headwise.records.record import AttentionRecord
    from headwise.viewer import TextAttention


@dataclass(frozen=True)
class HeadSummary:
    """One head over one text. A token "looks": it is the query; a token "is looked at": it is the key."""

    layer: int
    head: int
    entropy: float  # nats, mean over the tokens that look
    distance: float  # tokens, mean over the tokens that look
    on_first: float  # mean weight on the first token, 0 to 1
    looks: int  # the strongest pair: the token that looks,
    looked_at: int  # the token that it looks at,
    strongest: float  # and the weight between them


def summarise(seen: TextAttention) -> list[HeadSummary]:
    """One summary a head, layer by layer. Nothing of size Q x K is built."""
    pairs = zip(seen.layers, seen.records, strict=True)
    return [summary for layer, record in pairs for summary in _summarise_layer(layer, record)]


def _summarise_layer(layer: int, record: AttentionRecord) -> list[HeadSummary]:
    entropy_H = record.entropy()[0].mean(dim=-1).tolist()
    distance_H = record.distance()[0].mean(dim=-1).tolist()
    first_H = record.weights(cols=0)[0, :, :, 0].mean(dim=-1).tolist()
    weights_BHQ1, keys_BHQ1 = record.top_k(1)
    strongest_H, looks_H = weights_BHQ1[0, :, :, 0].max(dim=-1)
    looked_at_H = keys_BHQ1[0, :, :, 0].gather(-1, looks_H[:, None])[:, 0]
    columns = (entropy_H, distance_H, first_H, looks_H.tolist(), looked_at_H.tolist(), strongest_H.tolist())
    return [HeadSummary(layer, head, *values) for head, values in enumerate(zip(*columns, strict=True))]


def print_table(console: Console, name: str, labels: Sequence[str], summaries: Sequence[HeadSummary]) -> None:
    """Draw the summaries of one text. Where the console is no terminal, no row is wrapped or cut."""
    from rich.measure import Measurement

    table = _table(name, labels, summaries)
    if not console.is_terminal:
        console.width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    console.print(table)


def _table(name: str, labels: Sequence[str], summaries: Sequence[HeadSummary]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(f"{name} · {len(labels)} tokens"),
        caption=Text(
            f"entropy in nats: 0 looks at one token, {math.log(len(labels)):.2f} at all {len(labels)} alike · "
            "distance in tokens · pair: who looks → at whom"
        ),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        caption_style="dim",
    )
    for heading in ("layer", "head", "entropy", "distance", "on first"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("strongest pair", overflow="fold")
    table.add_column("weight", justify="right", no_wrap=True)
    previous = None
    for row in summaries:
        if previous not in (None, row.layer):
            table.add_section()
        table.add_row(
            Text(str(row.layer), style="dim" if row.layer == previous else "bold"),
            str(row.head),
            f"{row.entropy:.2f}",
            f"{row.distance:.1f}",
            f"{row.on_first:.0%}",
            Text.assemble((labels[row.looks], "cyan"), (" → ", "dim"), (labels[row.looked_at], "cyan")),
            f"{row.strongest:.2f}",
        )
        previous = row.layer
    return table
