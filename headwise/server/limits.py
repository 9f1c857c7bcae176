"""Limits HTTP requests: the size of the body and its time to arrive. Cancels them when the client disconnects."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwise.errors import RequestRefused
from headwise.server.routes.refusal import Refusals

GONE = 499  # in the log: the client disconnected before its answer
TOO_SLOW = 408
UNKNOWN_CODING = 415


class Limits:
    """ASGI middleware that reads the whole body of a request before the application runs, and limits its size.

    The application gets the whole body at once, and is cancelled when the client disconnects.

    Args:
        most: the largest body, in bytes, both as received and after decompression.
        patience: seconds in which the body must arrive.
        refuse: makes the responses to refused requests; None = the responses of plain routes.
    """

    def __init__(self, app: ASGIApp, *, most: int, patience: float, refuse: Refusals | None = None) -> None:
        self._app, self._most, self._patience, self._refuse = app, most, patience, refuse or Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            with anyio.fail_after(self._patience):
                body = await self._body(Headers(scope=scope), receive)
            body = self._unpacked(scope, body)
        except RequestRefused as error:
            await self._refuse(scope, error)(scope, receive, send)
        except TimeoutError:
            late = RequestRefused("timeout", f"the body did not arrive within {self._patience:g} s")
            await self._refuse(scope, late, TOO_SLOW)(scope, receive, send)
        except _UnknownCoding as error:
            await self._refuse(scope, RequestRefused("bad_input", str(error)), UNKNOWN_CODING)(scope, receive, send)
        except _Gone:
            scope["gone"] = True
        else:
            await self._run(scope, body, receive, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._most:
            raise self._too_large(f"{int(announced):,} bytes")
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            chunks.append(chunk := message.get("body", b""))
            size += len(chunk)
            if size > self._most:
                raise self._too_large("more")
            if not message.get("more_body"):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _unpacked(self, scope: Scope, body: bytes) -> bytes:
        coding = Headers(scope=scope).get("content-encoding", "identity").strip().lower()
        if coding == "identity":
            return body
        if coding not in ("gzip", "deflate"):
            raise _UnknownCoding("Content-Encoding: expected gzip, deflate or none. Received: another coding")
        unpacking = zlib.decompressobj(wbits=47)  # 47: detects gzip or zlib by the header
        try:
            plain = unpacking.decompress(body, self._most + 1)
        except zlib.error as error:
            raise RequestRefused(
                "bad_input", f"the body is not {coding}, although its Content-Encoding says so"
            ) from error
        if len(plain) > self._most:
            raise self._too_large("more, unpacked")
        if not unpacking.eof or unpacking.unused_data:
            raise RequestRefused("bad_input", f"the body is not one complete {coding} stream")
        headers = MutableHeaders(scope=scope)
        del headers["content-encoding"]
        headers["content-length"] = str(len(plain))
        return plain

    def _too_large(self, received: str) -> RequestRefused:
        return RequestRefused("too_large", f"the body: expected at most {self._most:,} bytes. Received: {received}")

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        # In the task of the request itself: two more tasks would cost a lone client a tenth of a millisecond.
        work = asyncio.current_task()
        assert work is not None
        given = over = False

        def leave(_: object) -> None:
            if not over:
                scope["gone"] = True
                work.cancel()

        async def give() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await asyncio.shield(gone)

        async def pass_on(message: Message) -> None:
            nonlocal over
            over = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        gone = asyncio.ensure_future(_disconnect(receive))
        gone.add_done_callback(leave)
        try:
            await self._app(scope, give, pass_on)
        except asyncio.CancelledError:
            if not scope.get("gone"):
                raise
        finally:
            over = True
            gone.cancel()
            if scope.get("gone") and hasattr(work, "uncancel"):  # Python 3.11: the cancellation ends here
                work.uncancel()


class _Gone(Exception):  # noqa: N818
    """Raised when the client disconnected while it was sending the body."""


class _UnknownCoding(Exception):  # noqa: N818
    """Raised for a Content-Encoding that is not supported."""


async def _disconnect(receive: Callable[[], object]) -> Message:
    while True:
        message: Message = await receive()  # type: ignore[misc]
        if message["type"] == "http.disconnect":
            return message
