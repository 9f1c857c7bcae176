"""How plain routes report errors to the client: {"error": a sentence, "kind": a RefusalKind}."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from headwise.server.protocols import errors


def told(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON data. The error may concern a whole request or one row."""
    refused = errors.refusal(error)
    return {"error": str(refused), "kind": refused.kind}


def refusal(error: BaseException, status: int | None = None) -> JSONResponse:
    """Return the response to a request that is refused; `status` replaces the status code that the error's kind has."""
    return JSONResponse(
        told(error), errors.http_status(error) if status is None else status, headers=errors.headers(error)
    )


class Refusals:
    """Makes the responses to requests that a middleware refuses before a route, in the error form of their protocol.

    Args:
        replies: prefix of all paths of a protocol -> the function that makes its response to an error.
    """

    def __init__(self, replies: Mapping[str, Callable[[BaseException], Response]] | None = None) -> None:
        self._replies = sorted((replies or {}).items(), key=lambda each: -len(each[0]))  # /v1/embeddings before /v1

    def __call__(self, scope: Scope, error: BaseException, status: int | None = None) -> Response:
        """Return the response to an error; `status` replaces the status code of the error."""
        for path, reply in self._replies:
            if scope["path"] == path or scope["path"].startswith(f"{path}/"):
                response = reply(error)
                response.status_code = response.status_code if status is None else status
                return response
        return refusal(error, status)
