"""`headwise predict`: predicts with a trained task, for texts or for the rows of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.bulk import bulk_options, check_ray, note, resumable
from headwise.cli.files import STDIN, check_writable, read_stdin, size
from headwise.cli.output import plain_table, print_report, working
from headwise.cli.scores import number
from headwise.cli.shared import PATH, encoding, shared
from headwise.errors import ArgumentError, brief, shortened
from headwise.language import Sentence, echo, printable, said
from headwise.tasks.rows.encodings import decode, recode
from headwise.tasks.training.folder import check_there

if TYPE_CHECKING:
    from rich.table import Table

    from headwise.tasks.bulk.running import Engine
    from headwise.tasks.task import Task

Row = dict[str, Any]

_MOST = 6  # number of columns that are printed
_LONGEST = 300  # number of characters of a cell that are printed
_MUCH = 1_000_000_000  # bytes; if a larger file is read whole, a note is printed
_BULK = {"chunk": "--chunk", "restart": "--restart", "workers": "--workers", "address": "--ray-address"}


@click.command(short_help="Predict with a trained task.")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option(
    "--context",
    metavar="TEXT",
    help="The second text, or the path of a file with it. For answer: the text with the answer.",
)
@click.option("--file", "file", help="A file with one input per row.", **PATH)
@click.option("--out", help="The file to write: .csv, .tsv, .jsonl, .json or .parquet.", **PATH)
@click.option(
    "--chunk",
    type=click.IntRange(1),
    metavar="ROWS",
    help="With --file and --out: rows in memory at a time.  [default: 2000]",
)
@bulk_options
@encoding
@shared
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
    """Predict with a trained task.

    RUN is the folder that headwise train wrote. An INPUT is a text. For answer it is a question, with --context; for
    match a text or the path of an image; for forecast a file with the past of the series. A pair of texts is written
    "first [SEP] second". "-" reads standard input, one input per line. The columns of --file are kept, and the
    predictions are added as new columns.

    With --file and --out, .csv, .tsv, .jsonl and .parquet files are read and written in chunks, so they may be larger
    than memory. Finished chunks are kept beside --out, and the same command resumes after Ctrl-C or a kill. Other files
    (.json, .txt), and all files for forecast, are read and written whole.
    """
    _check(inputs, context, file, out)
    bulk = {"chunk": chunk, "workers": workers, "address": ray_address, "restart": restart or None}
    _check_bulk(bulk, engine, file, out)
    check_there(run, *inputs)
    lines = _lines(inputs)

    from headwise import tasks
    from headwise.tasks.rows.tables import cut_notes

    with working(Sentence("loading {name}").format(name=run)):
        task = tasks.load(run)
    if context is not None and not task.reads_pairs:
        raise ArgumentError(
            Sentence("--context: expected a task that reads two texts. Received: {run}, a run of {name}").format(
                run=run, name=task.name
            )
        )
    if file is not None and out is not None:
        from headwise.tasks.bulk.streaming import why_whole

        why = why_whole(task, file, out)
        if why is None:
            _stream(task, run, file, out, engine, bulk)
            return
        _check_whole(file, why, engine, bulk)
    with working(Sentence("reading {name}").format(name=file) if file is not None else "answering"):
        if task.reads_files:
            rows = _predict_files(task, [*lines, *([str(file)] if file else [])])
        elif file is not None:
            rows = _predict_file(task, file)
        else:
            asked = _asked(task, lines, context)
            answers = task.predict(asked)
            note(cut_notes(task.cut(asked), range(1, len(lines) + 1), "input"))
            rows = [_put_beside({Sentence("input"): line}, row) for line, row in zip(lines, answers, strict=True)]
    if out is None:
        _print(rows, getattr(task, "writes", None))
        return
    from headwise.tasks.rows.written import write_table

    write_table(out, {name: [row[name] for row in rows] for name in rows[0]})
    _say_written(out, len(rows))


def _stream(task: Task[Any], run: Path, file: Path, out: Path, engine: Engine, bulk: dict[str, Any]) -> None:
    """Predict for a file of any size, in chunks."""
    from headwise.tasks.bulk.streaming import predict_file

    given = {name: value for name, value in bulk.items() if value is not None}
    with resumable(out) as tell:
        written = predict_file(task, run, file, out, engine=engine, tell=tell, **given)
    note(written.notes, written.before)
    _say_written(out, written.rows)


def _say_written(out: Path, rows: int) -> None:
    echo(said("Wrote {out} ({rows:,} row{s}).", out=out, rows=rows, s="" if rows == 1 else "s"))


def _check(inputs: Sequence[str], context: str | None, file: Path | None, out: Path | None) -> None:
    """Check that the options fit together and that --out can be written, before a model is loaded."""
    if bool(inputs) == (file is not None):
        received = Sentence("both" if inputs else "neither")
        raise click.UsageError(
            Sentence("Expected an INPUT or --file PATH. Received: {received}.").format(received=received),
            click.get_current_context(),
        )
    if context is not None and file is not None:
        raise ArgumentError("--context: expected an INPUT. Received: --file, which has a column of contexts")
    if out is not None:
        from headwise.tasks.rows.written import choose_writer

        choose_writer(out)
        check_writable(out, "--out", [file] if file else [])


def _check_bulk(bulk: dict[str, Any], engine: Engine, file: Path | None, out: Path | None) -> None:
    """Check that options for chunks come with --file and --out, and options for Ray with --engine ray."""
    for name, flag in _BULK.items():
        if bulk[name] is not None and (file is None or out is None):
            raise ArgumentError(
                Sentence("{flag}: only predictions from file to file use it. Add --file and --out").format(flag=flag)
            )
    check_ray(engine, workers=bulk["workers"], address=bulk["address"])
    if engine == "ray" and (file is None or out is None):
        raise ArgumentError("--engine ray: expected a file to read and a file to write. Add --file and --out")


def _check_whole(file: Path, why: str, engine: Engine, bulk: dict[str, Any]) -> None:
    """Check the options for a file that is read whole: none may be for chunks. Prints a note if the file is large."""
    for name, flag in _BULK.items():
        if engine == "ray" or bulk[name] is not None:
            option = "--engine ray" if engine == "ray" else flag
            raise ArgumentError(
                Sentence("{option}: this file is not read in chunks, because {why}. Leave it out").format(
                    option=option, why=why
                )
            )
    if file.is_file() and file.stat().st_size > _MUCH:
        echo(
            said(
                "note: {file} ({size}) is read into memory whole, because {why}",
                file=file,
                size=size(file.stat().st_size),
                why=why,
            ),
            err=True,
        )


def _lines(inputs: Sequence[str]) -> list[str]:
    """Return the inputs, with "-" replaced by the non-empty lines of standard input."""
    found: list[str] = []
    for text in inputs:
        if text == STDIN:
            found += [line for line in read_stdin().splitlines() if line.strip()]
        elif not text.strip():
            raise ArgumentError(Sentence("INPUT is empty: expected a text. Received: INPUT={text!r}").format(text=text))
        else:
            found.append(text)
    if inputs and not found:
        raise ArgumentError("standard input is empty: expected one input per line")
    return found


def _asked(task: Task[Any], lines: Sequence[str], context: str | None) -> Any:
    """Return the inputs in the form that `predict` of this task takes: texts, or pairs of texts."""
    if context is not None:
        return [(line, _read_text(context)) for line in lines]
    if not task.reads_pairs:
        return list(lines)
    from headwise.tasks.task import SEPARATOR

    between = f" {SEPARATOR} "
    if single := [line for line in lines if between not in line]:
        raise ArgumentError(
            Sentence('expected "first{between}second" as INPUT, or --context SECOND. Received: {single}').format(
                between=between, single=brief(single[0])
            )
        )
    pairs = [tuple(line.split(between)) for line in lines]
    if several := next((pair for pair in pairs if len(pair) > 2), None):
        raise ArgumentError(
            Sentence(
                'expected two texts with one "{separator}" between them. Received: {count} texts, '
                "{several}. A text that holds it can be passed in a table, with --file"
            ).format(separator=SEPARATOR, count=len(several), several=brief(between.join(several)))
        )
    return pairs


def _read_text(context: str) -> str:
    """Return the content of the file with this name if there is one, otherwise `context` itself."""
    try:
        is_file = Path(context).is_file()
    except OSError:  # too long for a file name
        is_file = False
    return decode(recode(Path(context).read_bytes(), context), context) if is_file else context


def _predict_files(task: Task[Any], paths: Sequence[str]) -> list[Row]:
    """Predict for each file as a whole, such as the future of the series in it; return all rows."""
    found: list[Row] = []
    for path in paths:
        which = {"file": path} if len(paths) > 1 else {}
        found += [_put_beside(which, row) for row in task.predict(path)]
    return found


def _put_beside(given: Row, predicted: Row) -> Row:
    from headwise.tasks.rows.names import name_beside

    names = name_beside(list(predicted), given)
    return {**given, **{_heading(names[name]): cell for name, cell in predicted.items()}}


def _heading(name: str) -> Sentence:
    """Return the name of a column of predictions as a `Sentence`, which the terminal shows in the language in use."""
    return name if isinstance(name, Sentence) else Sentence(name)


def _predict_file(task: Task[Any], path: Path) -> list[Row]:
    """Read a file whole and predict for its rows; a row that the task cannot use gets no prediction."""
    from headwise.tasks.bulk.answered import answer, sum_up
    from headwise.tasks.rows.sources import find_suffix, open_table

    wanted = task.file_columns(str(path))
    table = open_table(path, wanted)
    documents = task.reads_documents and find_suffix(path) == ".txt"
    answered = answer(task, str(path) if documents else table, table, wanted)
    _, _, sentences = sum_up(str(path), [answered.note()])
    note((*table.notes, *sentences))
    given = {*table.columns}
    columns = {name if name in given else _heading(name): cells for name, cells in answered.columns.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _print(rows: Sequence[Row], writes: str | None) -> None:
    """Print the predictions: a table, or one text per line for tasks that write texts, so that they can be piped."""
    if writes is not None:  # the predictions are behind the columns of the file, which may have another model's
        name = next(each for each in reversed(rows[0]) if each == writes or each.startswith(f"predicted {writes}"))
        for row in rows:
            echo(row[name])
        return
    print_report(_table(rows))
    if (more := len(rows[0]) - _MOST) > 0:
        echo(said("and {more} more column{s}, which --out writes", more=more, s="" if more == 1 else "s"), err=True)


def _table(rows: Sequence[Row]) -> Table:
    from rich.text import Text

    table = plain_table()
    names = list(rows[0])[:_MOST]
    for name in names:
        table.add_column(
            Text(printable(said(name) if isinstance(name, Sentence) else name)),
            justify="right" if isinstance(rows[0][name], float) else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(printable(_shown(row[name]))) for name in names))
    return table


def _shown(cell: Any) -> str:
    if cell is None:
        return ""
    return number(cell) if isinstance(cell, float) else shortened(str(cell), _LONGEST)
