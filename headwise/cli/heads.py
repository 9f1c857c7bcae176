"""Prints what each head does with one text, and which modules were not recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwise.language import said
from headwise.records.coverage import Coverage
from headwise.records.seen import Seen
from headwise.records.summary import HeadSummary, head_table, make_rows

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def summarise(seen: Seen, layers: Sequence[int]) -> list[HeadSummary]:
    """Summarise each head of these layers (indices into `seen.layers`); no tensor [Q, K] is built."""
    return [summary for layer in layers for summary in make_rows(seen, seen[layer])]


def print_table(console: Console, name: str, labels: Sequence[str], summaries: Sequence[HeadSummary]) -> None:
    """Print the summaries of one text as a table."""
    table = head_table(
        summaries,
        headings=("entropy", "distance", "first visible"),
        title=f"{name} · {said('{count} tokens', count=len(labels))}",
        caption=said(
            "entropy in nats: 0 = all weight on one token, {log:.2f} = the same on all {count} · distance in tokens · "
            "pair: query → key",
            log=math.log(len(labels)),
            count=len(labels),
        ),
    )
    print_whole(console, table)


def print_whole(console: Console, drawn: RenderableType) -> None:
    """Print an object of rich. If the console is not a terminal, rows are neither wrapped nor cut."""
    from rich.measure import Measurement

    if not console.is_terminal:
        console.width = Measurement.get(console, console.options.update(max_width=10_000), drawn).maximum
    console.print(drawn)


def print_unseen(console: Console, coverage: Coverage) -> None:
    """Print the attention modules that were not recorded (missed or refused), and why; then the notes."""
    from rich.text import Text

    if unseen := (*coverage.missed, *coverage.refused):
        print_whole(console, Coverage(unseen))
    for note in coverage.notes:
        console.print(Text(said("note: {note}", note=note)), soft_wrap=True)
