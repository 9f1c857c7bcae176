"""The queue of one model: waiting rows and streams (texts sent in pieces), and how rows are put into batches."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwise.errors import RequestRefused
from headwise.server.interface import Description
from headwise.server.pool.pace import Pace
from headwise.tasks.columns import Row

if TYPE_CHECKING:
    from headwise.server.pool.statistics import ModelStatistics

Kind = Literal["batch", "explain", "page", "attend"]

# In one batch that is padded, the cost of the longest row is at most this multiple of the cost of the shortest; and the
# lowest cost of a row, in characters.
_SPREAD, _LEAST = 2.0, 32
# The cost of a batch, in characters, about 4 to a token: more tokens at a time do not make a token cheaper, and the
# others wait.
_BUDGET = 32_768


class Request:
    """The rows of one caller, and their answers as they arrive.

    Args:
        future: a future that is done when every row has its answer.
        kind: the kind of work; only a "batch" shares a batch with other requests.
        places: for "attend": the queries whose weights are requested.
    """

    __slots__ = ("answers", "future", "kind", "left", "places", "rows")

    def __init__(
        self, future: asyncio.Future[None], kind: Kind, rows: Sequence[Row], now: float, places: Sequence[int] = ()
    ) -> None:
        self.future, self.kind, self.places = future, kind, tuple(places)
        self.answers: list[Any] = [None] * len(rows)
        self.left = len(rows)  # rows without an answer
        self.rows = [Waiting(self, at, row, now) for at, row in enumerate(rows)]

    def take(self, at: int, answer: Any) -> None:
        """Store the answer to the row with index `at`."""
        self.answers[at] = answer
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result(None)


class Waiting:
    """A row that has no answer yet. `size`: its approximate length, in characters; `since`: the time of its arrival."""

    __slots__ = ("at", "request", "row", "since", "size")

    def __init__(self, request: Request, at: int, row: Row, now: float) -> None:
        self.request, self.at, self.row, self.since = request, at, row, now
        self.size = _LEAST + measure_row(row)


@dataclass(eq=False)
class Batch:
    """Rows that a worker computes together, and the number of threads for them."""

    number: int
    model: Model
    rows: list[Waiting]
    threads: int


@dataclass(eq=False)
class Stream:
    """A text that is being generated and sent in pieces, or that waits for a worker.

    Args:
        pieces: the pieces of the text; then a RequestRefused, or None for success.
    """

    number: int
    model: Model
    row: Row
    since: float
    pieces: asyncio.Queue[str | RequestRefused | None] = field(default_factory=asyncio.Queue)


@dataclass(eq=False)
class Model:
    """One version of a model in the pool, with the queue of its rows.

    Args:
        key: the number that names the model in messages to workers.
        queue: rows that wait, oldest first.
        streams: streams that wait.
        in_workers: number of rows and streams in workers.
        in_batches: number of rows in workers, without streams.
        level: recent number of simultaneous rows.
        row_seconds: recent time per row in a worker.
        retired: whether it is unloaded after its last request; new requests do not find it any more.
        pace: the time of single rows by the number of threads.
        settled: a future that is done when a retired model has no work left.
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
    pace: Pace = field(default_factory=Pace)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    _counted: int = 0

    @property
    def waiting(self) -> int:
        return len(self.queue) + len(self.streams)

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.streams or self.in_workers)

    @property
    def oldest(self) -> Waiting:
        return next(iter(self.queue))

    def put(self, rows: Iterable[Waiting]) -> None:
        """Add rows to the queue."""
        self.queue.update(dict.fromkeys(rows))
        self._count()

    def take(self, most: int) -> list[Waiting]:
        """Remove the next batch from the queue, which must not be empty, and return it.

        The batch has the oldest row, and other rows up to a budget of characters: the next oldest rows if the model
        reads rows without padding, otherwise rows of similar length.
        """
        oldest = self.oldest
        if oldest.request.kind != "batch":
            rows = [oldest]
        else:
            batched = [waiting for waiting in self.queue if waiting.request.kind == "batch"]
            rows = (take_oldest if self.description.packs else alike)(batched, most)
        self.remove(rows)
        return rows

    def remove(self, rows: Iterable[Waiting]) -> None:
        """Remove rows from the queue; rows that are not in it are ignored."""
        for waiting in rows:
            self.queue.pop(waiting, None)
        self._count()

    def put_stream(self, stream: Stream) -> None:
        """Add a stream to the queue."""
        self.streams[stream] = None
        self._count()

    def remove_stream(self, stream: Stream) -> None:
        """Remove a stream from the queue, if it is in it."""
        self.streams.pop(stream, None)
        self._count()

    def give(self, rows: int, streams: int = 0) -> None:
        """Count rows and streams that were given to a worker. Negative numbers: the worker has answered them."""
        self.in_batches += rows
        self.in_workers += rows + streams
        self.numbers.in_flight += rows + streams

    def _count(self) -> None:
        # The statistics belong to a name and version, which an old model that is still answering may share.
        self.numbers.waiting += self.waiting - self._counted
        self._counted = self.waiting


def take_oldest(rows: list[Waiting], most: int) -> list[Waiting]:
    """Return the first rows: at most `most`, and no more characters than a batch may have; at least one row."""
    total = 0
    for count, waiting in enumerate(rows[:most]):
        total += waiting.size
        if count and total > _BUDGET:
            return rows[:count]
    return rows[:most]


def alike(rows: list[Waiting], most: int) -> list[Waiting]:
    """Return the first row and the rows closest to it in size, `most` in all; none is twice as large as another."""
    if len(rows) == 1 or most == 1:
        return rows[:1]
    first, ordered = rows[0], sorted(rows, key=lambda waiting: waiting.size)
    below = above = ordered.index(first)  # the ends of the interval taken
    while above - below + 1 < most:
        shortest, longest = ordered[below].size, ordered[above].size
        # The padding that one more row adds: a shorter row adds its own, a longer one adds padding to all others.
        shorter = longer = math.inf
        if below > 0 and longest <= _SPREAD * ordered[below - 1].size:
            shorter = longest - ordered[below - 1].size
        if above + 1 < len(ordered) and ordered[above + 1].size <= _SPREAD * shortest:
            longer = (ordered[above + 1].size - longest) * (above - below + 1)
        added = ordered[above + 1].size if longer < shorter else longest
        if shorter == longer == math.inf or added * (above - below + 2) > _BUDGET:
            break
        if shorter <= longer:
            below -= 1
        else:
            above += 1
    return ordered[below : above + 1]


def measure_row(row: Row) -> int:
    """Count the characters and array elements of a row. Bytes do not count: every image is scaled to one size."""
    return sum(len(value) if isinstance(value, str) else getattr(value, "size", 1) for value in row.values())
