"""`POST /embed` of Hugging Face's text-embeddings-inference (1.8).

    {"inputs": "a text" | ["a text", …], "truncate": false, "normalize": true, "prompt_name": null}  ->  [[…], …]

An error is {"error": a sentence, "error_type": "Validation" | "Overloaded" | "Backend" | "Unhealthy"}.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from headwise.errors import RefusalKind
from headwise.server.engine import Engine
from headwise.server.protocols import errors
from headwise.server.protocols.errors import bad_input, piece
from headwise.server.protocols.routes import Route, checked, json_body, json_of, parsed
from headwise.server.protocols.vectors import TEXTS, check_texts, embedder, of_length_1, vectors

_TYPES: dict[RefusalKind, str] = {
    "busy": "Overloaded",
    "failed": "Backend",
    "timeout": "Backend",
    "unavailable": "Unhealthy",
}


class Embed(BaseModel):
    """The texts; `truncate` cuts those with too many tokens, `normalize` makes vectors of length 1."""

    model_config = ConfigDict(json_schema_extra={"example": {"inputs": ["a warm film", "a dull film"]}})

    inputs: Annotated[str | list[str], WithJsonSchema(TEXTS)]
    truncate: bool | None = None
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    model: str | None = None


class Refusing(Route):
    """A route whose errors have the form of this protocol."""

    @staticmethod
    def reply(error: BaseException) -> Response:
        refused = errors.refusal(error)
        content = {"error": str(refused), "error_type": _TYPES.get(refused.kind, "Validation")}
        return json_of(content, errors.http_status(refused), errors.headers(refused))


def router(engine: Engine) -> APIRouter:
    """The route of the protocol, for an application with `Limits` around it."""
    routes = APIRouter(prefix="/embed", route_class=Refusing)

    @routes.post(
        "",
        summary="The vector of each text",
        response_model=list[list[float]],
        openapi_extra={"requestBody": json_body(Embed)},
    )
    async def embed(request: Request) -> Response:
        asked: Embed = checked(Embed, parsed(await request.body()))
        texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
        check_texts("inputs", texts)
        served, known = embedder(engine, asked.model)
        if asked.prompt_name is not None and asked.prompt_name not in known.prompts:
            names = ", ".join(known.prompts) or "none: this model has no prompts"
            raise bad_input(f"prompt_name: expected one of {names}. Received: {piece(asked.prompt_name)}")
        how: dict[str, Any] = {"truncate": bool(asked.truncate), "prompt_name": asked.prompt_name}
        found_NM, _ = await vectors(engine, served, texts, **how)
        if asked.dimensions is not None:
            found_NM = found_NM[:, : _width(asked.dimensions, known.dim)]
        return json_of(of_length_1(found_NM) if asked.normalize else found_NM)

    return routes


def _width(dimensions: int, dim: int) -> int:
    if dimensions > dim:
        raise bad_input(f"dimensions: expected 1 to {dim}. Received: {dimensions}")
    return dimensions
