"""What is known of the request that is being answered: the engine notes it, the log and the metrics tell it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.server.engine import Engine, Served
from headwise.server.interface import Row


@dataclass
class Noted:
    """One request, as the log tells it. It never holds what a client wrote: only names that are the server's own.

    Args:
        id: of the client, where it sent one that is fit for a log, else drawn.
        model: a name that is loaded, once it is known.
        rows: how many the model was asked for.
        route: where it is not that of the application's own router.
    """

    id: str
    model: str | None = None
    rows: int = 0
    route: str | None = None


current: ContextVar[Noted | None] = ContextVar("headwise_request", default=None)


class Observed:
    """An `Engine` that notes model and rows of each request.

    Args:
        timeout: seconds, of requests that come without one or with a longer one.
        stopping: whether the server is about to stop: then it is not ready, though it still answers.
    """

    def __init__(
        self, engine: Engine, timeout: float | None = None, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._engine, self._timeout, self._stopping = engine, timeout, stopping

    @property
    def live(self) -> bool:
        return self._engine.live

    @property
    def ready(self) -> bool:
        return self._engine.ready and not self._stopping()

    def models(self) -> list[Served]:
        return self._engine.models()

    def find(self, name: str, version: str | None = None) -> Served:
        return self._engine.find(name, version)

    async def answer(
        self, name: str, version: str | None, rows: Sequence[Row], *, timeout: float | None = None
    ) -> list[Row | HeadwiseError]:
        self._note(name, version, len(rows))
        return await self._engine.answer(name, version, rows, timeout=self._patience(timeout))

    async def stream(
        self, name: str, version: str | None, row: Row, *, timeout: float | None = None
    ) -> AsyncGenerator[str, None]:
        self._note(name, version, 1)
        pieces = self._engine.stream(name, version, row, timeout=self._patience(timeout))
        async with aclosing(pieces):  # type: ignore[type-var]  # all that there are, are generators
            async for piece in pieces:
                yield piece

    async def explain(
        self, name: str, version: str | None, row: Row, *, page: bool = False, timeout: float | None = None
    ) -> dict[str, Any] | str:
        self._note(name, version, 1)
        return await self._engine.explain(name, version, row, page=page, timeout=self._patience(timeout))

    async def load(self, name: str, path: Path | None = None) -> None:
        await self._engine.load(name, path)

    async def unload(self, name: str) -> None:
        await self._engine.unload(name)

    def _patience(self, timeout: float | None) -> float | None:
        """A client may ask for less than the server gives, not for more."""
        if timeout is None or self._timeout is None:
            return self._timeout if timeout is None else timeout
        return min(timeout, self._timeout)

    def _note(self, name: str, version: str | None, rows: int) -> None:
        self._engine.find(name, version)  # a name that is not loaded may be anything, and stays out of the log
        if (noted := current.get()) is not None:
            noted.model, noted.rows = name, noted.rows + rows
