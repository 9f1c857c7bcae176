"""Computes the parts of a file and joins them, here or on a Ray cluster; can be resumed after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from headwise.errors import ArgumentError
from headwise.language import Sentence, said
from headwise.tasks.bulk.parts import Answers, Job, Work, alone, begin, join
from headwise.tasks.rows.chunks import Found, Reader
from headwise.tasks.rows.sources import is_packed
from headwise.tasks.rows.tables import LISTED
from headwise.tasks.rows.written import schema_with

CHUNK = 2000  #: rows per chunk

Engine = Literal["local", "ray"]
Tell = Callable[[int, int, str], None]  # (done, total (0 = unknown), what)


class How(TypedDict, total=False):
    """The options of `compute` that a user may give: how the file is computed."""

    chunk: int
    engine: Engine
    workers: int
    address: str | None
    restart: bool


@dataclass(frozen=True)
class Written:
    """A report on a finished output file.

    Args:
        rows, before: the number of all rows, and of the rows that an earlier call had finished.
        notes: notes on rows without an answer, and on cut texts.
        tokens: number of tokens that this call read, if they are counted.
        seconds: the time that this call took for the missing parts.
    """

    rows: int
    before: int
    notes: tuple[str, ...]
    tokens: int = 0
    seconds: float = 0.0


def compute(
    job: Job,
    answers: Answers,
    path: Path,
    out: Path,
    look: Callable[[int], Found],
    *,
    gpus: bool,
    tell: Tell,
    chunk: int = CHUNK,
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
    restart: bool = False,
) -> Written:
    """Write the output file `out`: compute the parts that are missing, then join all parts.

    Args:
        job, answers: the computation; `answers` is the result of `job.load()`, or a function that does the same.
        path, out: absolute paths.
        look: a function: number of rows per chunk -> the chunks of the file; called if there is no journal yet.
        gpus: whether Ray workers may have GPUs.
        chunk: rows per chunk, which become one part.
        engine: "ray" distributes the chunks to Ray Data workers, each of which loads the job.
        workers, address: for Ray; see `ray_engine.answer_parts`.
        restart: whether to delete existing parts first.

    Raises:
        FileError, ArgumentError, KeyboardInterrupt: as for `predict_file`.
    """
    if engine == "ray" and is_packed(path):
        raise ArgumentError(f"{path}: Ray workers cannot read a gzipped file from the middle. Unpack it first")
    with alone(out, restart=restart):
        work = Work(job, begin(job, path, out, chunk, lambda: look(chunk)), out)
        missing = work.missing()
        again = [number for number in missing if work.part(number).exists()]
        before = work.found.rows - sum(work.found.chunks[number].rows for number in missing)
        if engine == "ray" and missing:
            from headwise.tasks.bulk.ray_engine import answer_parts

            done = answer_parts(work, missing, workers, address, gpus=gpus)
        else:
            done = _answer_parts(work, missing, answers)
        tokens, seconds = _count(work, done, before, tell)
        rows, notes = join(work)
    columns = () if work.found.layout is None else work.found.layout.notes
    return Written(rows, before, (*columns, *_damaged(work, again), *notes), tokens, seconds)


def _damaged(work: Work, again: Sequence[int]) -> tuple[str, ...]:
    """Return a sentence on the parts that were computed again because they were damaged; () if there are none."""
    if not again:
        return ()
    rows = sum(work.found.chunks[number].rows for number in again)
    names = ", ".join(work.part(number).name for number in again[:LISTED]) + ("…" if len(again) > LISTED else "")
    told = "{rows:,} of the rows were computed again, because their parts were damaged: {names}"
    return (Sentence(told).format(rows=rows, names=names),)


def _answer_parts(work: Work, missing: Iterable[int], answers: Answers) -> Iterator[int]:
    """Compute the parts in order in this process, and yield the number of each finished part."""
    with Reader(work.found) as reader:
        for number in missing:
            work.do(number, answers, reader)
            yield number


def _count(work: Work, done: Iterable[int], before: int, tell: Tell) -> tuple[int, float]:
    """Report progress while parts are finished, and check that they can be joined. Returns (tokens read, seconds)."""
    total, begun, rows, tokens = work.found.rows, time.monotonic(), 0, 0
    tell(before, total, said("rows"))
    schema = None
    for number in done:
        if work.out.suffix.lower() == ".parquet":  # fail early, not after all parts are done
            schema = schema_with(work.part(number), schema)
        rows += work.found.chunks[number].rows
        tokens += work.noted(number).tokens
        seconds = max(time.monotonic() - begun, 1e-9)
        speeds = [said("{speed:,.0f} rows/s", speed=rows / seconds)]
        speeds += [said("{speed:,.0f} tokens/s", speed=tokens / seconds)] if tokens else []
        tell(before + rows, total, said(", ").join(speeds))
    return tokens, time.monotonic() - begun
