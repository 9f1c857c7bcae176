"""A file of any size, answered chunk by chunk into another, here or on a Ray cluster; it goes on after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headwise.errors import ArgumentError
from headwise.tasks.bulk.answered import wanted_by
from headwise.tasks.bulk.parts import Work, alone, begin, join
from headwise.tasks.rows.chunks import SUFFIXES, Found, Reader, look_through
from headwise.tasks.rows.sources import is_packed, suffix_of
from headwise.tasks.rows.written import STREAMED, schema_with
from headwise.tasks.task import Task

CHUNK = 2000  #: rows

Engine = Literal["local", "ray"]
Tell = Callable[[int, int, str], None]  # done, of how many (0 = nobody knows), what


@dataclass(frozen=True)
class Written:
    """What was written: how many rows, how many of them were there from before, and which have no answer."""

    rows: int
    before: int
    left_out: tuple[str, ...]


def why_whole(task: Task[Any], path: Path, out: Path) -> str | None:
    """Why this file cannot be answered chunk by chunk, if it cannot."""
    suffix = suffix_of(path)
    if task.name == "forecast":
        return "forecast reads whole series"
    if suffix not in SUFFIXES or (suffix == ".parquet" and is_packed(path)):
        return f"{path.name} is read whole, only {', '.join(SUFFIXES)} are read in chunks"
    if out.suffix.lower() not in STREAMED:
        return f"{out.name} is written whole, only {', '.join(STREAMED)} are written in parts"
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
    """Answer the rows of a file: `out` has its columns and those of the answers, its rows in their order.

    No more than a chunk is in memory, in each worker. Each chunk that is done is kept in a part beside `out`. If the
    process is stopped, or killed, the same call goes on with the parts that are missing.

    Args:
        task: the trained task that is in `run`.
        path: a CSV, TSV, JSON lines (all also .gz) or Parquet file.
        out: a .csv, .tsv, .jsonl or .parquet file.
        chunk: rows that are answered at a time, and written to one part.
        engine: "ray" gives the chunks to workers of Ray Data, each of which loads the run.
        workers, address: of Ray; see `ray_engine.answer_parts`.
        restart: whether to delete the parts of what was begun before.

    Raises:
        FileError: a file that cannot be read or written; says in which line.
        ArgumentError: no such columns, no row that can be used, parts of other work, a file that cannot be read in
            chunks, no Ray.
        KeyboardInterrupt: Ctrl-C; the parts that are done are kept.
    """
    if why := why_whole(task, path, out):
        raise ArgumentError(f"{path}: cannot be answered in chunks: {why}")
    if engine == "ray" and is_packed(path):
        raise ArgumentError(f"{path}: each worker of Ray begins to read in another place: unpack it first")
    path, out, run = path.absolute(), out.absolute(), run.expanduser().absolute()
    with alone(out, restart=restart):
        wanted = wanted_by(task, path)

        def look() -> Found:
            found = look_through(
                path, wanted, chunk, lambda done, size: tell(done, size, f"looking through {path.name}")
            )
            if task.name == "answer" and "paragraphs" in found.columns:
                raise ArgumentError(
                    f"{path}: has several questions a row, as SQuAD has: write a .json file, it is then read whole"
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
        rows, left_out = join(work)
    return Written(rows, before, left_out)


def _answer_parts(work: Work, missing: Iterable[int], task: Task[Any]) -> Iterator[int]:
    """Do the parts, in order, in this process; gives each that is done."""
    with Reader(work.found) as reader:
        for number in missing:
            work.do(number, task, reader)
            yield number


def _count(work: Work, done: Iterable[int], before: int, tell: Tell) -> None:
    """Say how far it is, and how fast; and see that the parts can be joined."""
    total, begun, rows = work.found.rows, time.monotonic(), 0
    tell(before, total, "rows")
    schema = None
    for number in done:
        if work.out.suffix.lower() == ".parquet":  # better here than when all is done
            schema = schema_with(work.part(number), schema)
        rows += work.found.chunks[number].rows
        tell(before + rows, total, f"{rows / max(time.monotonic() - begun, 1e-9):,.0f} rows/s")
