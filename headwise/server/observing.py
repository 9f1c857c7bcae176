"""Facts about the current request (such as its model), which the engine records, and the log and the metrics write."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.server.engine import Engine, Served
from headwise.tasks.columns import Row


@dataclass
class Noted:
    """The record of one request for the log: only names that the server knows, never what a client sent.

    Args:
        id: the client's id if it is suitable for a log, otherwise random.
        model: the name of a loaded model, once it is known.
        rows: the number of rows in the request.
        route: the name of the route, set only if it is not a route of the application's router.
    """

    id: str
    model: str | None = None
    rows: int = 0
    route: str | None = None


current: ContextVar[Noted | None] = ContextVar("headwise_request", default=None)


class Observed:
    """An `Engine` that passes each call to another engine, and records the model and the number of rows of the request.

    Args:
        stopping: returns whether the server is about to stop: then this engine is not ready, but still answers.
    """

    def __init__(self, engine: Engine, stopping: Callable[[], bool] = lambda: False) -> None:
        self._engine, self._stopping = engine, stopping

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
        return await self._engine.answer(name, version, rows, timeout=timeout)

    async def stream(
        self, name: str, version: str | None, row: Row, *, timeout: float | None = None
    ) -> AsyncGenerator[str, None]:
        self._note(name, version, 1)
        pieces = self._engine.stream(name, version, row, timeout=timeout)
        async with aclosing(pieces):  # type: ignore[type-var]  # all that there are, are generators
            async for piece in pieces:
                yield piece

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
        self._note(name, version, 1)
        return await self._engine.explain(name, version, row, page=page, rows=rows, timeout=timeout)

    async def load(self, name: str, path: Path | None = None) -> None:
        await self._engine.load(name, path)

    async def unload(self, name: str) -> None:
        await self._engine.unload(name)

    def _note(self, name: str, version: str | None, rows: int) -> None:
        self._engine.find(name, version)  # raises for unknown names, which must not reach the log
        if (noted := current.get()) is not None:
            noted.model, noted.rows = name, noted.rows + rows
