"""An error as a plain route answers it: {"error": a sentence, "kind": one of a few words}."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from headwise.server.protocols import errors


def told(error: BaseException) -> dict[str, Any]:
    """What a client reads of an error, of a request or of one row."""
    refused = errors.refusal(error)
    return {"error": str(refused), "kind": refused.kind}


def refusal(error: BaseException, status: int | None = None) -> JSONResponse:
    """The answer to a request that is refused, with `status` where the kind's own does not fit."""
    return JSONResponse(
        told(error), errors.http_status(error) if status is None else status, headers=errors.headers(error)
    )
