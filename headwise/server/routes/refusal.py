"""An error as the answer of a plain route: {"error": a sentence, "kind": a RefusalKind}."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from headwise.server.protocols import errors


def told(error: BaseException) -> dict[str, Any]:
    """The JSON of an error, of a request or of one row."""
    refused = errors.refusal(error)
    return {"error": str(refused), "kind": refused.kind}


def refusal(error: BaseException, status: int | None = None) -> JSONResponse:
    """The response to a refused request; `status` overrides the status of its kind."""
    return JSONResponse(
        told(error), errors.http_status(error) if status is None else status, headers=errors.headers(error)
    )
