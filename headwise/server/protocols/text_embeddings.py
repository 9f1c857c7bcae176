"""`POST /embed` of Hugging Face's text-embeddings-inference (1.8).

    {"inputs": "a text" | ["a text", …], "truncate": false, "normalize": true, "prompt_name": null}  ->  [[…], …]

An error is {"error": a sentence, "error_type": …}, with the status that this server has for the type: "Empty" 400,
"Validation" 413 (422 if the body does not belong to the protocol), "Backend" 424, "Overloaded" 429, "Unhealthy" 503.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from headwise.errors import RefusalKind, RequestRefused
from headwise.server.engine import Engine
from headwise.server.protocols import errors
from headwise.server.protocols.errors import bad_input, piece
from headwise.server.protocols.routes import Route, checked, json_body, json_of, parsed
from headwise.server.protocols.vectors import TEXTS, Texts, check_texts, check_width, embedder, of_length_1, vectors

_TYPES: dict[RefusalKind, tuple[str, int]] = {  # kind -> (error_type, status); others: 401 and 404, as in all protocols
    "bad_input": ("Validation", 413),
    "busy": ("Overloaded", 429),
    "failed": ("Backend", 424),
    "timeout": ("Backend", 424),
    "unavailable": ("Unhealthy", 503),
}


class _Empty(RequestRefused):
    """Raised if there is no text, or an empty text."""


class _Malformed(RequestRefused):
    """Raised if the body does not belong to this protocol."""


class Embed(BaseModel):
    """The body of a request. `truncate` cuts texts with too many tokens, `normalize` scales vectors to length 1."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": ["a warm film", "a dull film"]}})

    inputs: Annotated[str | Texts, WithJsonSchema(TEXTS)]
    truncate: bool | None = None
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    model: str | None = None


class Refusing(Route):
    """A route that reports errors in the form of this protocol."""

    @staticmethod
    def reply(error: BaseException) -> Response:
        refused = errors.refusal(error)
        kind, status = _TYPES.get(refused.kind, ("Validation", errors.http_status(refused)))
        if isinstance(refused, _Empty):
            kind, status = "Empty", 400
        elif isinstance(refused, _Malformed):
            status = 422
        return json_of({"error": str(refused), "error_type": kind}, status, errors.headers(refused))


def router(engine: Engine) -> APIRouter:
    """Return the only route of the protocol, for an application with `Limits` around it."""
    routes = APIRouter(prefix="/embed", route_class=Refusing)

    @routes.post(
        "",
        summary="The vector of each text",
        response_model=list[list[float]],
        openapi_extra={"requestBody": json_body(Embed)},
    )
    async def embed(request: Request) -> Response:
        body = await request.body()
        try:
            asked: Embed = checked(Embed, parsed(body))
        except RequestRefused as error:
            raise _Malformed(error.kind, error.message) from error
        texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
        try:
            check_texts("inputs", texts)
        except RequestRefused as error:
            if all(texts) and texts:
                raise
            raise _Empty(error.kind, error.message) from error
        served, known = embedder(engine, asked.model)
        if asked.prompt_name is not None and asked.prompt_name not in known.prompts:
            names = ", ".join(known.prompts) or "none: this model has no prompts"
            raise bad_input(f"prompt_name: expected one of {names}. Received: {piece(asked.prompt_name)}")
        check_width(asked.dimensions, known.dim)
        how: dict[str, Any] = {"truncate": bool(asked.truncate), "prompt_name": asked.prompt_name}
        found_NM, _ = await vectors(engine, served, texts, **how)
        found_NM = found_NM[:, : asked.dimensions]
        return json_of(of_length_1(found_NM) if asked.normalize else found_NM)

    return routes
