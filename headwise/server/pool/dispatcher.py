"""`Dispatcher`: sends waiting rows to idle workers, and takes their answers.

A worker gets its next batch as soon as it has answered the previous one: all rows that arrived meanwhile. So batches
grow with the load. Only an idle worker may wait a little for more rows, and only if more rows are expected: the recent
number of simultaneous rows, less the rows that other workers have. If fewer rows are expected than there are workers,
as with a single client, a worker computes with the threads of the idle workers too, as long as that is faster (`Pace`).

A model that writes texts token by token has no batches: each of its rows is given to a worker at once, joins those that
the worker is writing, and leaves when its own text has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

from headwise.errors import RequestRefused
from headwise.server.logs import told
from headwise.server.pool.crew import Crew
from headwise.server.pool.messages import Message
from headwise.server.pool.process import Worker
from headwise.server.pool.rows import Batch, Model, Request, Stream, Waiting
from headwise.server.pool.statistics import Statistics
from headwise.server.settings import Settings

_STREAMS = 8  # streams per worker; a batch waits for one step of each
_FADE = 0.9  # decay of the moving average `Model.level`
_REPLACED_AFTER = 1.0  # seconds after which a client may try again when a worker died
_DIED = "the worker process died while it computed this request; it is being replaced"
_UNSENT = "the request cannot be sent to a worker; see the server's log"


class Dispatcher:
    """Takes rows from the queues of models, gives them to workers, and passes the answers on to the callers.

    Args:
        settled: a function that is called with a model when this model has no work left.
    """

    def __init__(
        self, settings: Settings, opener: str, statistics: Statistics, settled: Callable[[Model], None]
    ) -> None:
        self._settings, self._settled = settings, settled
        self.crew = Crew(settings, opener, statistics, self._receive, self.wake, self._fail)
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._number = 0

    async def start(self) -> None:
        """Start the workers. Raises OSError if a process cannot be started."""
        self._loop = asyncio.get_running_loop()
        await self.crew.start()

    def wake(self) -> None:
        """Schedule a dispatch after all pending events of the loop. Called when rows wait or a worker becomes idle."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._dispatch)

    def number(self) -> int:
        """Return a new, unused number for a batch or a stream (a text that is sent in pieces)."""
        self._number += 1
        return self._number

    # To workers

    def _dispatch(self) -> None:
        self._woken = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.crew.lost:
            self.refuse_all(f"no worker is left: {self.crew.gave_up[-1]}")
            return
        self._give_streams()
        now, soonest = self._loop.time(), math.inf
        # The model whose oldest row has waited longest comes first, so that no model starves.
        models = [model for model in self.crew.models.values() if model.queue]
        for model in sorted(models, key=lambda model: model.oldest.since) if len(models) > 1 else models:
            while model.queue:
                if model.description.joins and model.oldest.request.kind == "batch":
                    if not self._give_joining(model, now):
                        break
                    continue
                free = [worker for worker in self.crew.of(model) if worker.batch is None]
                if not free:
                    break
                due = self._due(model, len(free))
                if due > now:
                    soonest = min(soonest, due)
                    break
                worker = min(free, key=lambda worker: len(worker.streams))
                self._give_batch(worker, model, math.ceil(len(model.queue) / len(free)), now)
        if soonest < math.inf:
            self._timer = self._loop.call_at(soonest, self.wake)

    def _give_joining(self, model: Model, now: float) -> bool:
        """Give the oldest row to the worker that is writing the fewest rows. Returns False if no worker has room."""
        settings = self._settings
        worker = min(self.crew.of(model), key=lambda worker: len(worker.joined), default=None)
        if worker is None or len(worker.joined) >= settings.max_batch:
            return False
        oldest = model.oldest
        model.remove([oldest])
        batch = Batch(self.number(), model, [oldest], settings.worker_threads)
        if self._send(worker, batch, "join", oldest.row, now):
            worker.joined[batch.number] = batch
        return True

    def _due(self, model: Model, free: int) -> float:
        """Return the time at which the model's next batch should start, even if fewer rows wait than are expected.

        A time in the past means now: as many rows wait as are expected, or the oldest row does not share a batch.
        """
        waiting = len(model.queue)
        model.level = max(model.level, waiting + model.in_batches)
        expected = min(model.level - model.in_batches, self._settings.max_batch * free)
        if waiting > expected - 0.5 or model.oldest.request.kind != "batch":
            return 0.0
        return model.oldest.since + self._settings.max_delay_ms / 1000

    def _give_batch(self, worker: Worker, model: Model, share: int, now: float) -> None:
        settings = self._settings
        threads = model.pace.choose(settings.worker_threads, settings.count_threads(self._expected(model)))
        rows = model.take(min(share, settings.max_batch))
        model.level *= _FADE
        batch = Batch(self.number(), model, rows, threads)
        request = rows[0].request
        kind = request.kind
        given = [waiting.row for waiting in rows] if kind == "batch" else rows[0].row
        if self._send(worker, batch, kind, given, now, *([request.places] if kind == "attend" else [])):
            worker.batch = batch

    def _send(self, worker: Worker, batch: Batch, kind: str, given: Any, now: float, *more: Any) -> bool:
        """Send the rows of a batch to a worker, and count them. Refuses rows that cannot be sent, and returns False."""
        model = batch.model
        try:
            worker.send(kind, batch.number, model.key, given, batch.threads, *more)
        except Exception as error:
            told(logging.ERROR, "rows cannot be sent to a worker", error, model=model.name)
            self._refuse(model, batch.rows, RequestRefused("failed", _UNSENT))
            return False
        worker.heard = now
        model.give(len(batch.rows))
        for waiting in batch.rows:
            model.numbers.queue_seconds.observe(now - waiting.since)
        return True

    def _expected(self, model: Model) -> int:
        """Return the number of rows and streams that compete for the cores.

        These are the present rows and streams of all other models, and the recent number of this model.
        """
        others = (each for each in self.crew.models.values() if each is not model)
        now = sum(each.waiting + each.in_workers for each in others)
        return now + max(round(model.level), model.waiting + model.in_workers)

    def _give_streams(self) -> None:
        for model in self.crew.models.values():
            while model.streams:
                free = [worker for worker in self.crew.of(model) if len(worker.streams) < _STREAMS]
                if not free:
                    break
                stream = next(iter(model.streams))
                model.remove_stream(stream)
                self._give_stream(min(free, key=lambda worker: len(worker.streams)), stream)

    def _give_stream(self, worker: Worker, stream: Stream) -> None:
        now = self._loop.time()
        try:
            worker.send("stream", stream.number, stream.model.key, stream.row)
        except Exception as error:
            told(logging.ERROR, "a row cannot be sent to a worker", error, model=stream.model.name)
            stream.pieces.put_nowait(RequestRefused("failed", _UNSENT))
            return
        worker.streams[stream.number], worker.heard = stream, now
        stream.model.give(0, streams=1)
        stream.model.numbers.queue_seconds.observe(now - stream.since)

    # From workers

    def _receive(self, worker: Worker, message: Message) -> None:
        kind, number, *said = message
        if kind == "piece":
            if (stream := worker.streams.get(number)) is not None:
                stream.pieces.put_nowait(said[0])
        elif kind == "end":
            if (stream := worker.streams.pop(number, None)) is not None:
                self._end_stream(stream, said[0])
        elif (joined := worker.joined.pop(number, None)) is not None:
            seconds, answers = said
            self._dispatch()  # let another row take its place
            self._take(joined, seconds, answers, beside=len(worker.joined))
        elif worker.batch is not None and worker.batch.number == number:
            batch, worker.batch = worker.batch, None
            seconds, answers = said
            self._dispatch()  # give the worker its next batch before anything else
            self._take(batch, seconds, answers if kind == "answers" else [answers])

    def _take(self, batch: Batch, seconds: float, answers: list[Any], *, beside: int = 0) -> None:
        """Pass the answers on to the requests of the rows. `beside`: other rows that the worker computed meanwhile."""
        model, rows = batch.model, batch.rows
        together = len(rows) + beside
        model.numbers.batch_rows.observe(together)
        model.numbers.model_seconds.observe(seconds)
        if (
            together == 1 and rows[0].request.kind == "batch" and not model.description.joins
        ):  # other requests take another time for each character
            model.pace.took(batch.threads, rows[0].size, seconds)
        each = seconds / together
        model.row_seconds = 0.8 * model.row_seconds + 0.2 * each if model.row_seconds else each
        model.give(-len(rows))
        for waiting, answer in zip(rows, answers, strict=True):
            request = waiting.request
            if not request.future.done():  # otherwise its caller has been cancelled, and was counted
                model.numbers.ended(answer.kind if isinstance(answer, RequestRefused) else "ok")
                request.take(waiting.at, answer)
        self._check_settled(model)

    def _refuse(self, model: Model, rows: list[Waiting], refusal: RequestRefused) -> None:
        for request in {waiting.request: None for waiting in rows}:
            if not request.future.done():
                request.future.set_exception(refusal)
        self._check_settled(model)

    def _end_stream(self, stream: Stream, error: RequestRefused | None) -> None:
        stream.pieces.put_nowait(error)
        stream.model.give(0, streams=-1)
        self._check_settled(stream.model)
        self.wake()

    # Refusals

    def forget(self, model: Model, request: Request) -> None:
        """Drop a cancelled request: its rows leave the queue, and a worker stops writing its texts.

        Other rows that a worker has are computed anyway.
        """
        model.remove(request.rows)
        if model.description.joins:
            for worker in self.crew.workers:
                for number, batch in worker.joined.items():
                    if batch.rows[0].request is request:
                        worker.send("cancel", number)  # its "answers" follow
        self._check_settled(model)

    def forget_stream(self, stream: Stream) -> None:
        """Drop a stream that is no longer read."""
        stream.model.remove_stream(stream)
        for worker in self.crew.workers:
            if stream.number in worker.streams:
                worker.send("cancel", stream.number)  # its "end" follows
        self._check_settled(stream.model)

    def refuse_all(self, why: str) -> None:
        """Refuse all waiting rows and all rows in workers."""
        for worker in self.crew.workers:
            self._fail(worker, RequestRefused("unavailable", why))
        for model in list(self.crew.models.values()):
            for stream in list(model.streams):
                model.remove_stream(stream)
                stream.pieces.put_nowait(RequestRefused("unavailable", why))
            rows = list(model.queue)
            model.remove(rows)
            self._refuse(model, rows, RequestRefused("unavailable", why))

    def _fail(self, worker: Worker, refusal: RequestRefused | None = None) -> None:
        """Refuse all rows and streams that a dead worker had.

        They are not given to another worker, because they might kill it too.
        """
        refusal = refusal or RequestRefused("unavailable", _DIED, retry_after=_REPLACED_AFTER)
        batch, worker.batch = worker.batch, None
        if batch is not None:
            batch.model.give(-len(batch.rows))
            self._refuse(batch.model, batch.rows, refusal)
        joined, worker.joined = worker.joined, {}
        for each in joined.values():
            each.model.give(-1)
            self._refuse(each.model, each.rows, refusal)
        streams, worker.streams = worker.streams, {}
        for stream in streams.values():
            self._end_stream(stream, refusal)
        self.wake()

    def _check_settled(self, model: Model) -> None:
        if not model.busy:
            self._settled(model)
