"""`Pool`: the `Engine` of `headwise serve`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, RequestRefused
from headwise.server.engine import Served
from headwise.server.interface import Description
from headwise.server.pool.dispatcher import Dispatcher
from headwise.server.pool.rows import Kind, Model, Request, Stream
from headwise.server.pool.statistics import Outcome, Statistics
from headwise.server.pool.versions import versions
from headwise.server.settings import Settings
from headwise.tasks.columns import Row

OPENER = "headwise.server.interfaces:open_interface"


class Pool:
    """Worker processes that run models, and queues in front of them. All methods must be called in one event loop.

    Rows of different requests share batches. A row that makes a model fail, a dead worker, a full queue, a timeout or a
    cancelled caller each affect only their own rows. Every error is a RequestRefused.

    Args:
        opener: "module:function", called in a worker to open a model:
            function(path, backend=…, precision=…, threads=…) -> Interface.
    """

    def __init__(self, settings: Settings, *, opener: str = OPENER) -> None:
        self.settings = settings
        self.statistics = Statistics()
        self._models: dict[str, dict[str, Model]] = {}  # by name, then by version, the newest last
        self._paths: dict[str, Path] = {}
        self._started = self._stopping = False
        self._changing = asyncio.Lock()  # held while models are loaded or unloaded
        self._dispatcher = Dispatcher(settings, opener, self.statistics, self._settle)
        self._crew = self._dispatcher.crew

    async def start(self, models: Mapping[str, Path]) -> None:
        """Start the workers and load the models, given by name.

        Raises:
            RequestRefused: "bad_input": a model cannot be loaded; "unavailable": no worker can start. No process is
                left running in these cases.
        """
        try:
            await self._dispatcher.start()
            self._started = True
            for name, path in models.items():
                await self.load(name, path)
        except OSError as error:
            await self.stop()
            said = f"cannot start a worker process: {error.strerror or error}"
            raise RequestRefused("unavailable", said) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the workers.

        Requests without an answer fail with "unavailable"; before, the server waits for requests.
        """
        self._stopping = True
        self._dispatcher.refuse_all("the server has stopped, and this request was not answered in time")
        await self._crew.stop()

    # State

    @property
    def live(self) -> bool:
        """Return whether a worker is left or will be restarted; if not, only a restart of the server helps."""
        return not (self._started and self._crew.lost)

    @property
    def ready(self) -> bool:
        """Return whether every model can answer, no worker has been given up, and the server is not stopping."""
        if not self._started or self._stopping or self._crew.gave_up:
            return False
        return all(self._crew.of(model) for there in self._models.values() for model in there.values())

    def models(self) -> list[Served]:
        """Return all loaded models, sorted by name and version."""
        return [self._served(model) for name in sorted(self._models) for model in self._models[name].values()]

    def find(self, name: str, version: str | None = None) -> Served:
        """Find the model with this name; version None = the newest version. Raises RequestRefused "not_found"."""
        return self._served(self._find(name, version))

    def _served(self, model: Model) -> Served:
        return Served(model.name, model.version, model.description, ready=bool(self._crew.of(model)))

    def _find(self, name: str, version: str | None) -> Model:
        there = self._models.get(name)
        if there is None:
            raise self._missing(name)
        if version is None:
            return next(reversed(there.values()))
        if version not in there:
            raise RequestRefused(
                "not_found", f"the model {name!r} has no version {version!r}. Loaded: {_listed(list(there))}"
            )
        return there[version]

    def _missing(self, name: str) -> RequestRefused:
        return RequestRefused("not_found", f"unknown model {name!r}. Loaded: {_listed(sorted(self._models))}")

    # Requests

    async def answer(
        self, name: str, version: str | None, rows: Sequence[Row], *, timeout: float | None = None
    ) -> list[Row | HeadwiseError]:
        """Answer rows, see `Engine.answer`. `timeout` can only shorten the timeout of the settings."""
        model = self._admit(name, version, rows)
        return await self._ask(model, "batch", rows, timeout) if rows else []

    async def explain(
        self,
        name: str,
        version: str | None,
        row: Row,
        *,
        page: bool = False,
        rows: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any] | str:
        """Return statistics, a page or attention weights for a row, see `Engine.explain`."""
        model = self._admit(name, version, [row])
        if rows is None:
            [answer] = await self._ask(model, "page" if page else "explain", [row], timeout)
        else:
            [answer] = await self._ask(model, "attend", [row], timeout, rows)
        if isinstance(answer, RequestRefused):
            raise answer
        return answer

    async def stream(
        self, name: str, version: str | None, row: Row, *, timeout: float | None = None
    ) -> AsyncIterator[str]:
        """Yield text, see `Engine.stream`. The timeout counts until the last piece.

        To stop early, close the iterator.
        """
        model = self._admit(name, version, [row])
        loop = asyncio.get_running_loop()
        stream = Stream(self._dispatcher.number(), model, row, loop.time())
        model.put_stream(stream)
        seconds = self._patience(timeout)
        timer = loop.call_later(seconds, stream.pieces.put_nowait, _timeout(seconds))
        self._dispatcher.wake()
        outcome: Outcome = "cancelled"
        try:
            while isinstance(piece := await stream.pieces.get(), str):
                yield piece
            outcome = "ok" if piece is None else piece.kind
            if piece is not None:
                raise piece
        finally:
            timer.cancel()
            model.numbers.ended(outcome)
            self._dispatcher.forget_stream(stream)

    async def _ask(
        self, model: Model, kind: Kind, rows: Sequence[Row], timeout: float | None, places: Sequence[int] = ()
    ) -> list[Any]:
        loop = asyncio.get_running_loop()
        request = Request(loop.create_future(), kind, rows, loop.time(), places)
        model.put(request.rows)
        seconds = self._patience(timeout)
        timer = loop.call_later(seconds, _expire, request.future, seconds)
        self._dispatcher.wake()
        outcome: Outcome = "cancelled"
        try:
            await request.future
        except RequestRefused as error:
            outcome = error.kind
            raise
        finally:
            timer.cancel()
            if request.left:
                model.numbers.ended(outcome, request.left)
                self._dispatcher.forget(model, request)
            request.rows.clear()  # breaks the reference cycle between request and rows
        return request.answers

    def _patience(self, timeout: float | None) -> float:
        return self.settings.timeout if timeout is None else min(timeout, self.settings.timeout)

    def _admit(self, name: str, version: str | None, asked: Sequence[Row]) -> Model:
        if not self._started or self._stopping:
            state = "is stopping" if self._started else "is not ready yet"
            raise RequestRefused("unavailable", f"the server {state}", retry_after=1.0)
        model, rows = self._find(name, version), len(asked)
        if wrong := [type(row).__name__ for row in asked if not isinstance(row, dict)]:
            model.numbers.ended("bad_input", rows)
            raise RequestRefused("bad_input", f"a row: expected an object, a dict of columns. Received: {wrong[0]}")
        if self._crew.lost:
            model.numbers.ended("unavailable", rows)
            raise RequestRefused("unavailable", f"no worker is left: {self._crew.gave_up[-1]}")
        most = self.settings.max_queue
        if rows > most:
            model.numbers.ended("too_large", rows)
            raise RequestRefused("too_large", f"expected at most {most} rows in a request. Received: {rows} rows")
        if model.waiting + rows > most:
            model.numbers.ended("busy", rows)
            said = (
                f"the queue of {name!r} is full: {model.waiting} of at most {most} rows are waiting, and this request "
                f"has {rows}. Try again later"
            )
            workers = len(self._crew.workers) or 1
            seconds = min(60.0, max(1.0, model.waiting * model.row_seconds / workers))
            raise RequestRefused("busy", said, retry_after=seconds)
        return model

    # Models

    async def load(self, name: str, path: Path | None = None) -> None:
        """Load a model, see `Engine.load`. Every worker loads it while the old one answers; then requests get it.

        A folder of versions is loaded as a whole and replaces all loaded versions.
        """
        async with self._changing:
            if self._stopping:
                raise RequestRefused("unavailable", "the server is stopping and loads no more models")
            self.statistics.loads += 1
            try:
                fresh = await self._open(name, path)
            except BaseException:
                self.statistics.failed_loads += 1
                raise
            for model in fresh:
                self._crew.keep(model)
            old = self._models.get(name, {})
            self._models[name] = {model.version: model for model in fresh}
            for model in old.values():
                self._retire(model)

    async def unload(self, name: str) -> None:
        """Unload a model, see `Engine.unload`. Returns when the accepted requests are answered."""
        async with self._changing:
            if name not in self._models:
                raise self._missing(name)
            old = self._models.pop(name)
            for model in old.values():
                self._retire(model)
        for model in old.values():
            await model.settled.wait()

    async def _open(self, name: str, path: Path | None) -> list[Model]:
        if path is None and name not in self._paths:
            raise RequestRefused(
                "not_found", f"unknown model {name!r}: models are named in the command that starts the server"
            )
        path = self._paths[name] if path is None else path
        opened: list[tuple[int, str, Path, Description]] = []
        try:
            for version, folder in versions(path).items():
                key = self._crew.key()
                opened.append((key, version, folder, await self._crew.load(key, folder)))
        except BaseException:
            for key, *_ in opened:
                self._crew.drop(key)
            raise
        self._paths[name] = path
        return [
            Model(key, name, version, folder, description, self.statistics.of(name, version))
            for key, version, folder, description in opened
        ]

    def _retire(self, model: Model) -> None:
        model.retired = True
        if not model.busy:
            self._settle(model)

    def _settle(self, model: Model) -> None:
        """Drop a retired model from the workers. Called whenever a model has no work left."""
        if model.retired and not model.settled.is_set():
            model.settled.set()
            self._crew.drop(model.key)
            if model.version not in self._models.get(model.name, {}):
                self.statistics.models.pop((model.name, model.version), None)


def _expire(future: asyncio.Future[None], seconds: float) -> None:
    if not future.done():
        future.set_exception(_timeout(seconds))


def _timeout(seconds: float) -> RequestRefused:
    return RequestRefused("timeout", f"the request was not answered within {seconds:g} seconds")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
