"""`headwise predict`: what a trained task makes of texts, or of the rows of a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.files import STDIN, check_writable, size
from headwise.cli.output import print_report, progress_bar, working
from headwise.cli.scores import number
from headwise.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table

    from headwise.tasks.bulk.streaming import Engine
    from headwise.tasks.task import Task

Row = dict[str, Any]

_PAIR = " [SEP] "  # between the two texts of one input
_MOST = 6  # columns that are printed
_MUCH = 1_000_000_000  # bytes, of a file that is read whole
_INTERRUPTED = 130
_BULK = {"chunk": "--chunk", "restart": "--restart", "workers": "--workers", "address": "--ray-address"}


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
@click.option(
    "--chunk",
    type=click.IntRange(1),
    metavar="ROWS",
    help="Of --file, rows that are in memory at a time.  [default: 2000]",
)
@click.option("--restart", is_flag=True, help="Do not go on with what was begun: delete its parts, and begin again.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="Who does it: this process, or workers of Ray.  [default: local]",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Of --engine ray, processes that each load the run.  [default: 2]",
)
@click.option(
    "--ray-address", metavar="ADDRESS", help="The Ray cluster. Default: RAY_ADDRESS, or one that is started here."
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")
def predict(
    run: Path,
    inputs: tuple[str, ...],
    context: str | None,
    file: Path | None,
    out: Path | None,
    chunk: int | None,
    restart: bool,
    engine: Engine,
    workers: int | None,
    ray_address: str | None,
) -> None:
    """Ask a trained task.

    RUN is the folder that headwise train wrote. An INPUT is a text; of answer a question, with --context; of match a
    text or the path of an image; of forecast a file with the past of the series. Two texts for one label are written
    "first [SEP] second". Of --file, columns are kept and those of the answers added. "-" reads standard input, an input
    a line.

    With --file and --out the file may be larger than memory: .csv, .tsv, .jsonl and .parquet are read and written in
    chunks, those that are done are kept beside --out, and the same command goes on after Ctrl-C or a kill. Files of
    other kinds (.json, .txt) are read and written whole, and so is what forecast reads.
    """
    _check(inputs, context, file, out)
    bulk = {"chunk": chunk, "workers": workers, "address": ray_address, "restart": restart or None}
    _check_bulk(bulk, engine, file, out)
    lines = _lines(inputs)

    from headwise import tasks

    with working(f"loading {run}"):
        task = tasks.load(run)
    if context is not None and task.name != "answer":
        raise ArgumentError(f"--context: is where answer looks; {run} is a run of {task.name}")
    if file is not None and out is not None:
        from headwise.tasks.bulk.streaming import why_whole

        why = why_whole(task, file, out)
        if why is None:
            _stream(task, run, file, out, engine, bulk)
            return
        _check_whole(file, why, engine, bulk)
    with working(f"reading {file}" if file is not None else "answering"):
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
    _say_written(out, len(rows))


def _stream(task: Task[Any], run: Path, file: Path, out: Path, engine: Engine, bulk: dict[str, Any]) -> None:
    """A file of any size, in chunks."""
    from headwise.tasks.bulk.streaming import predict_file

    given = {name: value for name, value in bulk.items() if value is not None}
    try:
        with progress_bar() as tell:
            written = predict_file(task, run, file, out, engine=engine, tell=tell, **given)
    except KeyboardInterrupt:
        click.echo(f"headwise: interrupted; the same command goes on with {out}, --restart begins again", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    for sentence in written.left_out:
        click.echo(f"note: {sentence}", err=True)
    if written.before:
        click.echo(f"note: {written.before:,} of the rows were there from before", err=True)
    _say_written(out, written.rows)


def _say_written(out: Path, rows: int) -> None:
    click.echo(f"Wrote {out} ({rows:,} row{'' if rows == 1 else 's'}).")


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


def _check_bulk(bulk: dict[str, Any], engine: Engine, file: Path | None, out: Path | None) -> None:
    """That what is said of chunks has a file to read and one to write, and what is said of Ray an engine."""
    for name, flag in _BULK.items():
        if bulk[name] is not None and (file is None or out is None):
            raise ArgumentError(f"{flag}: goes with --file and --out")
        if bulk[name] is not None and name in ("workers", "address") and engine != "ray":
            raise ArgumentError(f"{flag}: goes with --engine ray")
    if engine == "ray" and (file is None or out is None):
        raise ArgumentError("--engine ray: goes with --file and --out")


def _check_whole(file: Path, why: str, engine: Engine, bulk: dict[str, Any]) -> None:
    """That nothing was said of chunks where there are none; and a note where much will be read into memory."""
    for name, flag in _BULK.items():
        if engine == "ray" or bulk[name] is not None:
            raise ArgumentError(f"{'--engine ray' if engine == 'ray' else flag}: there are no chunks here, as {why}")
    if file.is_file() and file.stat().st_size > _MUCH:
        click.echo(f"note: {file} ({size(file.stat().st_size)}) is read into memory, as {why}", err=True)


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
    """The rows of a file, read whole, and what the task makes of each. Rows it cannot use have no answer."""
    from headwise.tasks.bulk.answered import answer, sum_up, wanted_by
    from headwise.tasks.rows.sources import open_table, suffix_of

    wanted = wanted_by(task, path)
    table = open_table(path, wanted)
    documents = task.name == "language" and suffix_of(path) == ".txt"  # which may have several lines
    answered = answer(task, str(path) if documents else table, table, wanted)
    _, _, sentences = sum_up(str(path), [answered.note()])
    for sentence in sentences:
        click.echo(f"note: {sentence}", err=True)
    columns = answered.columns
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


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
