"""Turns errors into HTTP and gRPC status codes."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from headwise.errors import FileError, HeadwiseError, RefusalKind, RequestRefused

if TYPE_CHECKING:
    import grpc
    from fastapi import Response

log = logging.getLogger("headwise.server")

_STATUS: dict[RefusalKind, int] = {
    "bad_input": 400,
    "unauthorized": 401,
    "not_found": 404,
    "too_large": 413,
    "busy": 429,
    "failed": 500,
    "unavailable": 503,
    "timeout": 504,
}

_CODE: dict[RefusalKind, str] = {
    "bad_input": "INVALID_ARGUMENT",
    "unauthorized": "UNAUTHENTICATED",
    "not_found": "NOT_FOUND",
    "too_large": "INVALID_ARGUMENT",  # RESOURCE_EXHAUSTED would make clients retry
    "busy": "RESOURCE_EXHAUSTED",
    "failed": "INTERNAL",
    "unavailable": "UNAVAILABLE",
    "timeout": "DEADLINE_EXCEEDED",
}


def bad_input(message: str) -> RequestRefused:
    """Return the error for an invalid request."""
    return RequestRefused("bad_input", message)


def refusal(error: BaseException) -> RequestRefused:
    """Return the error that a client gets: a RequestRefused unchanged, another HeadwiseError as bad input.

    For any other error the client learns only that the server failed, because the message may contain data of other
    clients; the log gets the error's class and line.
    """
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, HeadwiseError) and not isinstance(error, FileError):
        return bad_input(str(error))
    log.error("a request failed: %s", _where(error))
    return RequestRefused("failed", "the server failed on this request; see its log")


def http_status(error: BaseException) -> int:
    """Return the HTTP status for an error."""
    return _STATUS[_kind(error)]


def grpc_code(error: BaseException) -> grpc.StatusCode:
    """Return the gRPC status code for an error."""
    import grpc

    code: grpc.StatusCode = grpc.StatusCode[_CODE[_kind(error)]]
    return code


def headers(error: BaseException) -> dict[str, str]:
    """Return the HTTP headers for an error: Retry-After in seconds, if a retry helps; WWW-Authenticate for a 401."""
    after = error.retry_after if isinstance(error, RequestRefused) else None
    found = {} if after is None else {"Retry-After": str(max(1, math.ceil(after)))}
    return found | ({"WWW-Authenticate": "Bearer"} if _kind(error) == "unauthorized" else {})


def reply(error: BaseException) -> Response:
    """Return the HTTP response to an error: JSON `{"error": "a sentence"}`, the same in both inference protocols."""
    from fastapi.responses import JSONResponse

    refused = refusal(error)
    return JSONResponse({"error": str(refused)}, http_status(refused), headers(refused))


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> None:
    """End a gRPC call with the error. Always raises. Sends "grpc-retry-pushback-ms" for clients with a retry policy."""
    refused = refusal(error)
    after = refused.retry_after
    trailing = () if after is None else (("grpc-retry-pushback-ms", str(math.ceil(after * 1000))),)
    await context.abort(grpc_code(refused), str(refused), trailing)


def piece(text: object, most: int = 40) -> str:
    """Return the beginning of something that a client sent, short enough (`most` characters) for an error message."""
    shown = repr(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _kind(error: BaseException) -> RefusalKind:
    if isinstance(error, RequestRefused):
        return error.kind
    return "bad_input" if isinstance(error, HeadwiseError) and not isinstance(error, FileError) else "failed"


def _where(error: BaseException) -> str:
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    place = "" if step is None else f" in {step.tb_frame.f_code.co_filename}, line {step.tb_lineno}"
    return f"{type(error).__name__}{place}"
