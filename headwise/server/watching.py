"""The outermost middleware of every HTTP request: request id, log line, metrics, and a handler for all errors."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwise.errors import RequestRefused
from headwise.server.limits import GONE
from headwise.server.logs import told
from headwise.server.metrics import Metrics
from headwise.server.observing import Noted, current
from headwise.server.routes.refusal import refusal

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})


class Watching:
    """The outermost ASGI middleware: gives each request an id, logs and counts it, and answers if an error is raised.

    Args:
        stopping: returns whether the server is about to stop: then each answer closes its connection.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, stopping: Callable[[], bool]) -> None:
        self._app, self._metrics, self._stopping = app, metrics, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        noted = Noted(request_id(Headers(scope=scope).get("x-request-id")))
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = noted.id
                headers["X-Content-Type-Options"] = "nosniff"
                if self._stopping():
                    headers["Connection"] = "close"
            await send(message)

        before = current.set(noted)
        self._metrics.begin("http")
        try:
            await self._app(scope, receive, answer)
        except Exception as error:  # unexpected: the client gets a general error, the log the location
            told(logging.ERROR, "failed", error, request=noted.id)
            if not status:
                failed = RequestRefused("failed", f"the server failed; see its log for the request {noted.id}")
                await refusal(failed)(scope, receive, answer)
        finally:
            current.reset(before)
            code = GONE if scope.get("gone") else status or GONE
            seconds = time.perf_counter() - began
            route = noted.route or getattr(scope.get("route"), "path", None) or "other"
            self._metrics.end("http", route, str(code), seconds)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            log_request(noted, "http", route, code, seconds, method)


def request_id(given: str | None) -> str:
    """Return the client's request id if it is suitable for a log, otherwise a random one."""
    return given if given is not None and _ID.fullmatch(given) else uuid.uuid4().hex


def log_request(
    noted: Noted, protocol: str, route: str, code: int | str, seconds: float, method: str | None = None
) -> None:
    """Write a log line for a request that was answered."""
    told(
        logging.INFO,
        "request",
        protocol=protocol,
        method=method,
        route=route,
        model=noted.model,
        code=code,
        ms=round(seconds * 1000, 2),
        rows=noted.rows or None,
        request=noted.id,
    )
