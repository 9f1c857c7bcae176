"""Prints scores for train and evaluate: beside the scores of trivial baselines; and a classifier's confusion table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headwise.cli.output import plain_table, print_report, titled
from headwise.errors import shortened
from headwise.language import Sentence, counted, echo, named, printable, said

if TYPE_CHECKING:
    from rich.console import Group

    from headwise.tasks.scores import Scores

_MOST = 12  # labels of a confusion table that fit on a terminal


def print_scores(scores: Scores, title: Sentence) -> None:
    """Print the scores, the confusion table of a classifier, and notes on rows that were not scored."""
    print_report(scores_table(scores, title))
    if 0 < len(scores.labels) <= _MOST:
        echo()
        print_report(confusion_table(scores))
    elif scores.labels:
        echo(said("{count} labels: --json writes their confusion table.", count=len(scores.labels)))
    for sentence in scores.left_out:
        echo(said("note: {sentence}", sentence=sentence))


def scores_table(scores: Scores, title: Sentence) -> Group:
    """Make a table with one row per score: the model's value, then the value of each baseline."""
    from rich.text import Text

    table = plain_table()
    table.add_column(said("score"))
    table.add_column(said("model"), justify="right", style="bold")
    for name in scores.baselines:
        table.add_column(Text(printable(said(name))), justify="right")
    for name, value in scores.values.items():
        others = [number(each[name]) if name in each else "" for each in scores.baselines.values()]
        table.add_row(Text(printable(named(name))), number(value), *others)
    return titled(said("{title}, {rows}", title=title, rows=counted(scores.count, "row")), table)


def confusion_table(scores: Scores) -> Group:
    """Make a table with one row per true label and one column per predicted label."""
    from rich.text import Text

    table = plain_table()
    table.add_column(said("label"))
    for label in scores.labels:
        table.add_column(Text(printable(said("predicted {label}", label=shortened(label, 20)))), justify="right")
    for place, (label, row) in enumerate(zip(scores.labels, scores.confusion, strict=True)):
        cells = [Text(str(count), style="bold" if column == place else "") for column, count in enumerate(row)]
        table.add_row(Text(printable(shortened(label, 20))), *cells)
    return titled(said("true label (rows) and predicted label (columns)"), table)


def number(value: float) -> str:
    """Return a number as text, with about four significant digits."""
    if math.isnan(value):
        return "–"
    if abs(value) < 10:
        return f"{value:.4f}"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"
