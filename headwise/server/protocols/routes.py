"""What the routes of every HTTP protocol share: errors as replies, JSON, and what the OpenAPI page says of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from headwise.errors import RequestRefused
from headwise.server.protocols.errors import piece, reply


class Problem(BaseModel):
    """Why a request is not answered."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request is not one of the protocol, or does not fit the model"},
    404: {"model": Problem, "description": "No such model or version"},
    413: {"model": Problem, "description": "Too large, or too many tokens"},
    429: {"model": Problem, "description": "The queue is full: try again after Retry-After seconds"},
    503: {"model": Problem, "description": "Still starting, or already stopping"},
    504: {"model": Problem, "description": "It took too long"},
}


class Route(APIRoute):
    """A route whose errors become replies of the protocol."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except HTTPException:
                raise
            except RequestValidationError as error:
                return reply(RequestRefused("bad_input", _complaint(error.errors())))
            except Exception as error:  # whatever it is, the server stays up, and its text stays here
                return reply(error)

        return handle


# What a route of a model does: given the request, the model's name and its version, None = the newest.
OfModel = Callable[[Request, str, "str | None"], Coroutine[Any, Any, Response]]


def add_of_model(routes: APIRouter, path: str, function: OfModel, summary: str, **more: Any) -> None:
    """Add a route for the newest version of a model, and one for a version that is named.

    Args:
        path: behind the model's.
        more: of `APIRouter.add_api_route`.
    """

    async def newest(request: Request, name: str) -> Response:
        return await function(request, name, None)

    async def one(request: Request, name: str, version: str) -> Response:
        return await function(request, name, version)

    name = function.__name__
    routes.add_api_route(f"/models/{{name}}{path}", newest, summary=summary, operation_id=name, **more)
    routes.add_api_route(
        f"/models/{{name}}/versions/{{version}}{path}",
        one,
        summary=f"{summary}, one version",
        operation_id=f"{name}_of_version",
        **more,
    )


def json_of(value: Any, status: int = 200) -> Response:
    """JSON; a number that JSON has not, NaN or infinity, is null."""
    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status, media_type="application/json")


def parsed(body: bytes) -> Any:
    """The JSON in a body. Raises RequestRefused."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestRefused("bad_input", f"the body is not JSON: {error.msg}, at character {error.pos}") from error


def checked(model: type[BaseModel], value: Any) -> Any:
    """A value of JSON as a model of pydantic. Raises RequestRefused with what is wrong, and where."""
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestRefused("bad_input", _complaint(details)) from error


def _complaint(details: Any) -> str:
    first = details[0]
    where = ".".join(str(part) for part in first["loc"] if not isinstance(part, str) or part.isidentifier())
    said = "expected an object" if first["type"] == "model_type" else first["msg"]  # which names a class
    return f"the request is not one of this protocol: {piece(where, 80)[1:-1] or 'its JSON'}: {said}"


def json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What the OpenAPI page says of a body that the route reads by itself."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    return {"required": required, "content": {"application/json": {"schema": _inlined(schema, definitions)}}}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    return {key: _inlined(part, definitions) for key, part in schema.items()}
