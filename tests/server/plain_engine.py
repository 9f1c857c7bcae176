"""What the tests of the application talk to: the engine of the protocols' tests, which here explains too."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.testclient import TestClient

from headwise.errors import RequestRefused
from headwise.server import logs
from headwise.server.app import create
from headwise.server.settings import Settings
from headwise.tasks.columns import Row
from tests.server.protocols.engines import InProcess

LOCAL = "http://127.0.0.1"


class Explaining(InProcess):
    """Text "late" is explained too late."""

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
        if row["text"] == "late":
            raise RequestRefused("timeout", "it took longer than 1 s")
        if rows is not None:
            (answer,) = await self.answer(name, version, [row])
            return {"answer": answer, "tokens": [*row["text"]], "rows": [*rows], "layers": [np.ones((1, len(rows), 2))]}
        return f"<!doctype html><p>{len(row['text'])}" if page else {"layers": [{"entropy": float("nan")}]}


def client(settings: Settings | None = None, engine: InProcess | None = None, **headers: str) -> TestClient:
    """A client of the application, in the process."""
    app = create(engine, settings) if engine else _app(settings or Settings())
    return client_of(app, **headers)


def client_of(app: FastAPI, **headers: str) -> TestClient:
    return TestClient(app, LOCAL, raise_server_exceptions=False, headers=headers, follow_redirects=False)


@cache
def _app(settings: Settings) -> FastAPI:
    """One for all who want the same: to make one takes a while."""
    return create(Explaining(), settings)


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """What the server logs meanwhile."""
    loggers = [logging.getLogger(name) for name in logs.NAMES]
    kept = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    stream = io.StringIO()
    logs.set_up(stream)
    try:
        yield stream
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, kept, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def scope(path: str, headers: Mapping[str, str] | None = None, method: str = "POST") -> dict[str, Any]:
    """The scope of a request, for what httpx cannot do: to send slowly, and to leave."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(key.lower().encode(), value.encode()) for key, value in (headers or {}).items()],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }
