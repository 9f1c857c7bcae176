"""The table of heads that `headwise view` prints: what each head does with one text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwise.records.table import HeadSummary, head_rows, head_table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headwise.viewer import TextAttention


def summarise(seen: TextAttention) -> list[HeadSummary]:
    """One summary a head, layer by layer. Nothing of size Q x K is built."""
    labels = seen.tokens.labels
    return [
        summary
        for layer, record in zip(seen.layers, seen.records, strict=True)
        for summary in head_rows(record, layer=str(layer), index=layer, labels=[(labels, labels)])
    ]


def print_table(console: Console, name: str, labels: Sequence[str], summaries: Sequence[HeadSummary]) -> None:
    """Draw the summaries of one text."""
    table = head_table(
        summaries,
        numbers=("entropy", "distance", "on first"),
        title=f"{name} · {len(labels)} tokens",
        caption=f"entropy in nats: 0 looks at one token, {math.log(len(labels)):.2f} at all {len(labels)} alike · "
        "distance in tokens · pair: who looks → at whom",
    )
    print_whole(console, table)


def print_whole(console: Console, drawn: RenderableType) -> None:
    """Print; where the console is no terminal, no row is wrapped or cut."""
    from rich.measure import Measurement

    if not console.is_terminal:
        console.width = Measurement.get(console, console.options.update(max_width=10_000), drawn).maximum
    console.print(drawn)
