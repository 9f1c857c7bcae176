"""Predict a file of any size in chunks, here or on a Ray cluster; it can be resumed after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headwise.errors import ArgumentError
from headwise.tasks.bulk.parts import Work, alone, begin, join
from headwise.tasks.rows.chunks import SUFFIXES, Found, Reader, look_through
from headwise.tasks.rows.sources import is_packed, suffix_of
from headwise.tasks.rows.written import STREAMED, schema_with
from headwise.tasks.task import Task

CHUNK = 2000  #: rows

Engine = Literal["local", "ray"]
Tell = Callable[[int, int, str], None]  # (done, total (0 = unknown), what)


@dataclass(frozen=True)
class Written:
    """A finished output: numbers of rows, of rows finished before, and notes on missing predictions and cut texts."""

    rows: int
    before: int
    notes: tuple[str, ...]


def why_whole(task: Task[Any], path: Path, out: Path) -> str | None:
    """Why this file cannot be processed in chunks; None if it can."""
    suffix = suffix_of(path)
    if task.reads_files:
        return f"{task.name} reads whole files"
    if suffix not in SUFFIXES or (suffix == ".parquet" and is_packed(path)):
        return f"{path.name} is read whole; only {', '.join(SUFFIXES)} are read in chunks"
    if out.suffix.lower() not in STREAMED:
        return f"{out.name} is written whole; only {', '.join(STREAMED)} are written in parts"
    return None


def predict_file(
    task: Task[Any],
    run: Path,
    path: Path,
    out: Path,
    *,
    chunk: int = CHUNK,
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
    restart: bool = False,
    tell: Tell = lambda done, total, what: None,
) -> Written:
    """Predict for the rows of a file. `out` gets its columns and those of the predictions, with rows in the same order.

    Each worker holds only one chunk in memory. Each finished chunk is kept in a part beside `out`. If the process stops
    or is killed, the same call resumes with the missing parts.

    Args:
        task: the trained task of the run folder `run`.
        path: a CSV, TSV, JSON lines (all also .gz) or Parquet file.
        out: a .csv, .tsv, .jsonl or .parquet file.
        chunk: rows per chunk, which become one part.
        engine: "ray" distributes the chunks to Ray Data workers, each of which loads the run folder.
        workers, address: for Ray; see `ray_engine.answer_parts`.
        restart: whether to delete existing parts first.

    Raises:
        FileError: a file cannot be read or written; the message names the line.
        ArgumentError: columns are missing, no row is usable, parts belong to other work, the file cannot be read in
            chunks, or Ray is missing.
        KeyboardInterrupt: Ctrl-C; finished parts are kept.
    """
    if why := why_whole(task, path, out):
        raise ArgumentError(f"{path}: cannot be processed in chunks: {why}")
    if engine == "ray" and is_packed(path):
        raise ArgumentError(f"{path}: Ray workers cannot read a gzipped file from the middle. Unpack it first")
    path, out, run = path.absolute(), out.absolute(), run.expanduser().absolute()
    with alone(out, restart=restart):
        wanted = task.file_columns(str(path))

        def look() -> Found:
            found = look_through(path, wanted, chunk, lambda done, size: tell(done, size, f"scanning {path.name}"))
            if "paragraphs" in found.columns and not set(wanted) & set(found.columns):
                raise ArgumentError(
                    f"{path}: rows have several questions, as in SQuAD. Write a .json file, so that it is read whole"
                )
            return found

        work = Work(run, begin(run, path, out, chunk, look), wanted, out)
        missing = work.missing()
        before = work.found.rows - sum(work.found.chunks[number].rows for number in missing)
        if engine == "ray" and missing:
            from headwise.tasks.bulk.ray_engine import answer_parts

            done = answer_parts(work, missing, workers, address, gpus=task.options.accelerator != "cpu")
        else:
            done = _answer_parts(work, missing, task)
        _count(work, done, before, tell)
        rows, notes = join(work)
    columns = () if work.found.layout is None else work.found.layout.notes
    return Written(rows, before, (*columns, *notes))


def _answer_parts(work: Work, missing: Iterable[int], task: Task[Any]) -> Iterator[int]:
    """Compute the parts in order in this process; yields each finished one."""
    with Reader(work.found) as reader:
        for number in missing:
            work.do(number, task, reader)
            yield number


def _count(work: Work, done: Iterable[int], before: int, tell: Tell) -> None:
    """Report progress and speed, and check that the parts can be joined."""
    total, begun, rows = work.found.rows, time.monotonic(), 0
    tell(before, total, "rows")
    schema = None
    for number in done:
        if work.out.suffix.lower() == ".parquet":  # fail early, not after all parts are done
            schema = schema_with(work.part(number), schema)
        rows += work.found.chunks[number].rows
        tell(before + rows, total, f"{rows / max(time.monotonic() - begun, 1e-9):,.0f} rows/s")
