"""Responses are compressed where the client asks for it (Accept-Encoding) and they are large."""

from __future__ import annotations

import gzip
import zlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST = 16 * 2**10  # bytes of a body: less is sent in one piece anyway
LEVEL = 1  # numbers as text shrink to half in little time; higher levels take several times as long for a little more


class Packing:
    """ASGI middleware: gzip or deflate for whole bodies of at least `LEAST` bytes. Streams pass as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coding = _wanted(Headers(scope=scope).get("accept-encoding", "")) if scope["type"] == "http" else None
        if coding is None:
            await self._app(scope, receive, send)
            return
        start: Message = {}

        async def pack(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start:
                if not message.get("more_body") and len(message.get("body", b"")) >= LEAST:
                    message = _packed(start, message, coding)
                await send(start)
                start = {}
            await send(message)

        await self._app(scope, receive, pack)


def _wanted(accepted: str) -> str | None:
    """The coding that an Accept-Encoding asks for; None = no coding, or another one."""
    codings = {}
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        codings[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return next((name for name in ("gzip", "deflate") if codings.get(name, False)), None)


def _packed(start: Message, message: Message, coding: str) -> Message:
    """The message with its body packed. The headers of `start` say so afterwards."""
    headers = MutableHeaders(scope=start)
    if "content-encoding" in headers:
        return message
    body = message["body"]
    packed = gzip.compress(body, LEVEL, mtime=0) if coding == "gzip" else zlib.compress(body, LEVEL)
    headers["Content-Encoding"] = coding
    headers["Content-Length"] = str(len(packed))
    headers.add_vary_header("Accept-Encoding")
    return {**message, "body": packed}
