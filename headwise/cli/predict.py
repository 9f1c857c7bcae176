"""`headwise predict`: what a trained task makes of texts, or of the rows of a file."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.files import STDIN, check_writable
from headwise.cli.output import print_report, working
from headwise.cli.scores import number
from headwise.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table

    from headwise.tasks.task import Task

Row = dict[str, Any]

_PAIR = " [SEP] "  # between the two texts of one input
_MOST = 6  # columns that are printed


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option("--context", metavar="TEXT", help="Of answer: the text to look in, or the path of a file with it.")
@click.option("--file", "file", type=click.Path(path_type=Path), metavar="PATH", help="A file with a row an input.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="What to write: .csv, .tsv, .jsonl, .json or .parquet.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")
def predict(run: Path, inputs: tuple[str, ...], context: str | None, file: Path | None, out: Path | None) -> None:
    """Ask a trained task.

    RUN is the folder that headwise train wrote. An INPUT is a text; of answer a question, with --context; of match a
    text or the path of an image; of forecast a file with the past of the series. Two texts for one label are written
    "first [SEP] second". Of --file, columns are kept and those of the answers added. "-" reads standard input, an input
    a line.
    """
    _check(inputs, context, file, out)
    lines = _lines(inputs)

    from headwise import tasks

    with working(f"loading {run}") as say:
        task = tasks.load(run)
        if context is not None and task.name != "answer":
            raise ArgumentError(f"--context: is where answer looks; {run} is a run of {task.name}")
        say(f"reading {file}" if file is not None else "answering")
        if task.name == "forecast":
            rows = _forecast(task, [*lines, *([str(file)] if file else [])])
        elif file is not None:
            rows = _of_file(task, file)
        else:
            answers = task.predict(_asked(task, lines, context))
            rows = [{"input": line, **row} for line, row in zip(lines, answers, strict=True)]
    if out is None:
        _print(rows, getattr(task, "writes", None))
        return
    from headwise.tasks.rows.written import write_table

    write_table(out, {name: [row[name] for row in rows] for name in rows[0]})
    click.echo(f"Wrote {out} ({len(rows):,} row{'' if len(rows) == 1 else 's'}).")


def _check(inputs: Sequence[str], context: str | None, file: Path | None, out: Path | None) -> None:
    """What cannot be asked together, and what cannot be written, before a model is loaded."""
    if bool(inputs) == (file is not None):
        said = "both" if inputs else "neither"
        raise click.UsageError(f"Expected an INPUT or --file PATH; received {said}.", click.get_current_context())
    if context is not None and file is not None:
        raise ArgumentError("--context: goes with an INPUT; a file has a column of contexts")
    if out is not None:
        from headwise.tasks.rows.written import writer_of

        writer_of(out)
        check_writable(out, "--out")
        if file is not None and out.resolve() == file.resolve():
            raise ArgumentError(f"--out {out}: this is the file to read; choose another")


def _lines(inputs: Sequence[str]) -> list[str]:
    """The inputs, and for "-" the lines of standard input that are not empty."""
    found: list[str] = []
    for text in inputs:
        if text == STDIN:
            lines = sys.stdin.buffer.read().decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
            found += [line for line in lines if line.strip()]
        elif not text.strip():
            raise ArgumentError(f"INPUT is empty: expected a text, received {text!r}")
        else:
            found.append(text)
    if inputs and not found:
        raise ArgumentError("standard input is empty: expected an input a line")
    return found


def _asked(task: Task[Any], lines: Sequence[str], context: str | None) -> Any:
    """The inputs as `predict` of this task takes them."""
    if context is not None:
        return [(line, _text_of(context)) for line in lines]
    if task.name == "answer" and any(_PAIR not in line for line in lines):
        raise ArgumentError(f'expected --context TEXT, or "question{_PAIR}context" as an INPUT. Received: a question')
    if task.name == "answer" or getattr(task.options, "text_pair", None) is not None:
        return [tuple(line.split(_PAIR, 1)) for line in lines]
    return list(lines)


def _text_of(context: str) -> str:
    """The text itself, or that of the file of this name."""
    try:
        is_file = Path(context).is_file()
    except OSError:  # too long for a name
        is_file = False
    return Path(context).read_text(encoding="utf-8") if is_file else context


def _forecast(task: Task[Any], paths: Sequence[str]) -> list[Row]:
    """The future of the series in each file."""
    found: list[Row] = []
    for path in paths:
        which = {"file": path} if len(paths) > 1 else {}
        found += [{**which, **row} for row in task.predict(path)]
    return found


def _of_file(task: Task[Any], path: Path) -> list[Row]:
    """The rows of a file, with all its columns, and what the task makes of each. Rows it cannot use have no answer."""
    from headwise.tasks.rows.sources import open_table

    columns = [field.name for field in dataclasses.fields(task.options) if field.metadata.get("metavar") == "COLUMN"]
    wanted = [name for column in columns if (name := getattr(task.options, column)) is not None]
    table = open_table(path, wanted)
    if task.name in ("match", "language"):
        numbers, given = table.numbers, table.columns
        answers = task.predict(path)
    else:
        data = task.read(str(path), task.options, targets=False)
        numbers, given = data.numbers, data.columns
        answers = task.predict(data)
        for sentence in data.left_out:
            click.echo(f"note: {sentence}", err=True)
        if any(name in table.columns for name in wanted) and set(numbers) <= set(table.numbers):
            given = table.columns
    if len(answers) != len(numbers):  # of a row there may be several
        return answers
    places = {number: place for place, number in enumerate(numbers)}
    whole = given is table.columns
    nothing: Row = dict.fromkeys(answers[0])
    rows = []
    for place, line in enumerate(table.numbers if whole else numbers):
        answer = answers[places[line]] if line in places else nothing
        kept = {name: cells[place] for name, cells in given.items()}
        rows.append(kept | {f"predicted {name}" if name in kept else name: cell for name, cell in answer.items()})
    return rows


def _print(rows: Sequence[Row], writes: str | None) -> None:
    """A text a line of what writes texts, so that it can be piped; of other tasks a table."""
    if writes is not None:
        name = f"predicted {writes}" if f"predicted {writes}" in rows[0] else writes
        for row in rows:
            click.echo(row[name])
        return
    print_report(_table(rows))
    if (more := len(rows[0]) - _MOST) > 0:
        click.echo(f"and {more} more column{'' if more == 1 else 's'}, which --out writes", err=True)


def _table(rows: Sequence[Row]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    names = list(rows[0])[:_MOST]
    for name in names:
        table.add_column(Text(name), justify="right" if isinstance(rows[0][name], float) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(row[name])) for name in names))
    return table


def _shown(cell: Any) -> str:
    if cell is None:
        return ""
    return number(cell) if isinstance(cell, float) else str(cell)
