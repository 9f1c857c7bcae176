"""What waits for a worker: rows of requests, streams, and the queue of one model, which makes batches of them."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwise.errors import RequestRefused
from headwise.server.interface import Description, Row

if TYPE_CHECKING:
    from headwise.server.pool.process import Worker
    from headwise.server.pool.statistics import ModelStatistics

Kind = Literal["batch", "explain", "page"]

# The longest row of a batch costs at most this many times what its shortest costs, as all are padded to the longest;
# and what a row costs however short it is, in characters.
_SPREAD, _LEAST = 2.0, 32


class Request:
    """Rows that one caller waits for.

    Args:
        future: done when every row has its answer.
        kind: how the rows are asked; only a "batch" is shared with others.
    """

    __slots__ = ("answers", "future", "kind", "left", "rows")

    def __init__(self, future: asyncio.Future[None], kind: Kind, rows: Sequence[Row], now: float) -> None:
        self.future, self.kind = future, kind
        self.answers: list[Any] = [None] * len(rows)
        self.left = len(rows)  # without an answer
        self.rows = [Waiting(self, at, row, now) for at, row in enumerate(rows)]

    def take(self, at: int, answer: Any) -> None:
        """The answer to one row."""
        self.answers[at] = answer
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result(None)


class Waiting:
    """One row, until it has its answer. `size` is roughly its length; `since` is when it came."""

    __slots__ = ("at", "request", "row", "since", "size")

    def __init__(self, request: Request, at: int, row: Row, now: float) -> None:
        self.request, self.at, self.row, self.since = request, at, row, now
        self.size = _LEAST + size_of(row)


@dataclass(eq=False)
class Batch:
    """Rows that a worker has."""

    number: int
    model: Model
    rows: list[Waiting]


@dataclass(eq=False)
class Stream:
    """A text that is being written, or waits for a worker.

    Args:
        pieces: str, as they come; then a RequestRefused, or None where all went well.
    """

    number: int
    model: Model
    row: Row
    since: float
    pieces: asyncio.Queue[str | RequestRefused | None] = field(default_factory=asyncio.Queue)
    worker: Worker | None = None


@dataclass(eq=False)
class Model:
    """A model of one version, as the pool knows it, and what waits for it.

    Args:
        key: what workers call it.
        queue: rows that wait, oldest first.
        streams: that wait.
        in_workers: rows and streams that workers have.
        in_batches: the rows alone.
        level: how many rows were there at once, of late.
        row_seconds: how long a worker takes for a row, of late.
        retired: whether it goes when its last request is answered; requests find another in its place, or none.
        settled: then done.
    """

    key: int
    name: str
    version: str
    path: Path
    description: Description
    numbers: ModelStatistics
    queue: OrderedDict[Waiting, None] = field(default_factory=OrderedDict)
    streams: OrderedDict[Stream, None] = field(default_factory=OrderedDict)
    in_workers: int = 0
    in_batches: int = 0
    level: float = 1.0
    row_seconds: float = 0.0
    retired: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    _counted: int = 0

    @property
    def waiting(self) -> int:
        return len(self.queue) + len(self.streams)

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.streams or self.in_workers)

    def put(self, rows: Iterable[Waiting]) -> None:
        """Rows wait."""
        self.queue.update(dict.fromkeys(rows))
        self._count()

    def take(self, most: int) -> list[Waiting]:
        """Take the next batch out of the queue, which has something: the oldest row, and others as long as it is."""
        oldest = next(iter(self.queue))
        if oldest.request.kind != "batch":
            rows = [oldest]
        else:
            rows = alike([waiting for waiting in self.queue if waiting.request.kind == "batch"], most)
        self.remove(rows)
        return rows

    def remove(self, rows: Iterable[Waiting]) -> None:
        """Rows wait no more, those of them that did."""
        for waiting in rows:
            self.queue.pop(waiting, None)
        self._count()

    def put_stream(self, stream: Stream) -> None:
        """A stream waits."""
        self.streams[stream] = None
        self._count()

    def remove_stream(self, stream: Stream) -> None:
        """A stream waits no more, if it did."""
        self.streams.pop(stream, None)
        self._count()

    def give(self, rows: int, streams: int = 0) -> None:
        """A worker has so many more, or fewer, of its rows and streams."""
        self.in_batches += rows
        self.in_workers += rows + streams
        self.numbers.in_flight += rows + streams

    def _count(self) -> None:
        # The numbers are those of a name and version, which an older model that still answers may share.
        self.numbers.waiting += self.waiting - self._counted
        self._counted = self.waiting


def alike(rows: list[Waiting], most: int) -> list[Waiting]:
    """At most `most` of the rows: the first, and those nearest to it in size, none twice as long as another."""
    if len(rows) == 1 or most == 1:
        return rows[:1]
    first, ordered = rows[0], sorted(rows, key=lambda waiting: waiting.size)
    below = above = ordered.index(first)  # the ends of what is taken
    while above - below + 1 < most:
        shortest, longest = ordered[below].size, ordered[above].size
        # What one more row would add in padding: a shorter one its own, a longer one that of all the others.
        shorter = longer = math.inf
        if below > 0 and longest <= _SPREAD * ordered[below - 1].size:
            shorter = longest - ordered[below - 1].size
        if above + 1 < len(ordered) and ordered[above + 1].size <= _SPREAD * shortest:
            longer = (ordered[above + 1].size - longest) * (above - below + 1)
        if shorter == longer == math.inf:
            break
        if shorter <= longer:
            below -= 1
        else:
            above += 1
    return ordered[below : above + 1]


def size_of(row: Row) -> int:
    """Characters and elements of a row. Bytes do not count: an image is scaled, however many it has."""
    return sum(_sizes(row))


def _sizes(row: Row) -> Iterator[int]:
    for value in row.values():
        if isinstance(value, str):
            yield len(value)
        else:
            yield getattr(value, "size", 1)
