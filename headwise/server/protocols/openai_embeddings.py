"""`POST /v1/embeddings` of OpenAI.

    {"input": "a text" | ["a text", …] | [ids] | [[ids], …], "model": "name", "encoding_format": "float" | "base64",
     "dimensions": n}
    ->  {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": […]}], "model": …, "usage": …}

Vectors have length 1, like OpenAI's. `dimensions` keeps the first n elements of a vector, scaled to length 1 again. Ids
are token ids of the model's own tokenizer. An error is {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from headwise.errors import RefusalKind
from headwise.server.engine import Engine
from headwise.server.protocols import errors
from headwise.server.protocols.routes import Route, checked, json_body, json_of, parsed
from headwise.server.protocols.vectors import TEXTS, Texts, check_texts, check_width, embedder, of_length_1, vectors

Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
INPUTS = {"anyOf": [*TEXTS["anyOf"], _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}
_TYPES: dict[RefusalKind, str] = {
    "busy": "rate_limit_error",
    "failed": "server_error",
    "timeout": "server_error",
    "unavailable": "server_error",
}


class Embeddings(BaseModel):
    """The body of a request: the texts, or the ids of their tokens, and the name of the model."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"input": ["a warm film", "a dull film"], "model": "minilm"}}
    )

    input: Annotated[str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)], WithJsonSchema(INPUTS)]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class Refusing(Route):
    """A route that reports errors in the form of this protocol."""

    @staticmethod
    def reply(error: BaseException) -> Response:
        refused = errors.refusal(error)
        is_model = refused.kind == "not_found"
        content = {
            "message": str(refused),
            "type": _TYPES.get(refused.kind, "invalid_request_error"),
            "param": "model" if is_model else None,
            "code": "model_not_found" if is_model else None,
        }
        status = 400 if refused.kind == "too_large" else errors.http_status(refused)
        return json_of({"error": content}, status, errors.headers(refused))


def router(engine: Engine) -> APIRouter:
    """Return the only route of the protocol, for an application with `Limits` around it."""
    routes = APIRouter(prefix="/v1/embeddings", route_class=Refusing)

    @routes.post("", summary="The vector of each text", openapi_extra={"requestBody": json_body(Embeddings)})
    async def embeddings(request: Request) -> Response:
        asked: Embeddings = checked(Embeddings, parsed(await request.body()))
        given = asked.input
        inputs: Any = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
        check_texts("input", inputs)
        served, known = embedder(engine, asked.model)
        check_width(asked.dimensions, known.dim)
        found_NM, tokens = await vectors(engine, served, inputs)
        found_NM = np.ascontiguousarray(of_length_1(found_NM[:, : asked.dimensions]))
        in_base64 = asked.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _base64(vector_M) if in_base64 else vector_M}
            for index, vector_M in enumerate(found_NM)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_of({"object": "list", "data": data, "model": served.name, "usage": usage})

    return routes


def _base64(vector_M: np.ndarray) -> str:
    """Return the vector in base64, as float32 numbers with the lowest byte first."""
    return base64.b64encode(vector_M.astype("<f4").tobytes()).decode("ascii")
