"""Compresses large answers by gzip if the client accepts it (Accept-Encoding)."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

LEAST = 16 * 2**10  # bytes of a body: a smaller body is sent in one piece anyway
LEVEL = 1  # numbers as text shrink to half in little time; higher levels take several times as long for little gain
_REFUSED = re.compile(r"gzip\s*;\s*q=0(\.0*)?\s*(,|$)")


class Packing(GZipMiddleware):
    """Starlette's gzip middleware, without gzip for server-sent events and for clients that refuse it ("gzip;q=0")."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, LEAST, LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _REFUSED.search(Headers(scope=scope).get("accept-encoding", "")):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
