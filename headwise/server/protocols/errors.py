"""What an error is in HTTP and in gRPC."""

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
    "too_large": "INVALID_ARGUMENT",  # RESOURCE_EXHAUSTED would tell a client to try the same again
    "busy": "RESOURCE_EXHAUSTED",
    "failed": "INTERNAL",
    "unavailable": "UNAVAILABLE",
    "timeout": "DEADLINE_EXCEEDED",
}


def refusal(error: BaseException) -> RequestRefused:
    """What a client is told of an error: a refusal as it is; another of headwise's as bad input; and of anything else
    only that the server failed, because its message may hold what belongs to others. That one is logged, by its kind
    and place alone."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, HeadwiseError) and not isinstance(error, FileError):
        return RequestRefused("bad_input", str(error))
    log.error("a request failed: %s", _where(error))
    return RequestRefused("failed", "the server failed at this request; its log says where")


def http_status(error: BaseException) -> int:
    """The status of an HTTP response that says so."""
    return _STATUS[_kind(error)]


def grpc_code(error: BaseException) -> grpc.StatusCode:
    """The same for gRPC."""
    import grpc

    code: grpc.StatusCode = grpc.StatusCode[_CODE[_kind(error)]]
    return code


def headers(error: BaseException) -> dict[str, str]:
    """Of the HTTP response: Retry-After, whole seconds, where it makes sense to try again; what a 401 must have."""
    after = error.retry_after if isinstance(error, RequestRefused) else None
    found = {} if after is None else {"Retry-After": str(max(1, math.ceil(after)))}
    return found | ({"WWW-Authenticate": "Bearer"} if _kind(error) == "unauthorized" else {})


def reply(error: BaseException) -> Response:
    """The HTTP response: JSON `{"error": "a sentence"}`, as both protocols have it."""
    from fastapi.responses import JSONResponse

    refused = refusal(error)
    return JSONResponse({"error": str(refused)}, http_status(refused), headers(refused))


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> None:
    """End a gRPC call with the error. It always raises. Clients with a retry policy know "grpc-retry-pushback-ms"."""
    refused = refusal(error)
    after = refused.retry_after
    trailing = () if after is None else (("grpc-retry-pushback-ms", str(math.ceil(after * 1000))),)
    await context.abort(grpc_code(refused), str(refused), trailing)


def piece(text: object, most: int = 40) -> str:
    """A short piece of what a client sent, to name it in a sentence."""
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
