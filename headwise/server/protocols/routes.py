"""Code that the routes of all HTTP protocols share: replies to errors, JSON, and OpenAPI descriptions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from headwise.server.protocols.errors import bad_input, piece, reply

VERSIONED = " (given version)"  # the end of a summary of a route of one version


class Route(APIRoute):
    """A route that turns errors into replies of the protocol.

    A protocol with another form of errors overrides `reply`.
    """

    reply = staticmethod(reply)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except HTTPException:
                raise
            except RequestValidationError as error:
                return self.reply(bad_input(_complaint(error.errors())))
            except Exception as error:  # the server keeps running, and the message is not sent to the client
                return self.reply(error)

        return handle


# The function of a model's route: (request, name, version), version None = the newest.
OfModel = Callable[[Request, str, "str | None"], Coroutine[Any, Any, Response]]


def add_of_model(routes: APIRouter, path: str, function: OfModel, summary: str, **more: Any) -> None:
    """Add a route for the newest version of a model, and a second route whose path names the version.

    Args:
        path: appended to the path of the model.
        more: further arguments of `APIRouter.add_api_route`.
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
        summary=summary + VERSIONED,
        operation_id=f"{name}_of_version",
        **more,
    )


def json_of(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a JSON response; NaN and infinity, which JSON lacks, become null."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, headers, media_type="application/json")


def parsed(body: bytes) -> Any:
    """Parse the JSON value in a body. Raises RequestRefused if the body is not JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_input(f"the body is not JSON: {error.msg}, at character {error.pos}") from error


def checked(model: type[BaseModel], value: Any) -> Any:
    """Convert a JSON value to a pydantic model. Raises RequestRefused, which names the first error and where it is."""
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise bad_input(_complaint(details)) from error


def _complaint(details: Any) -> str:
    first = details[0]
    where = ".".join(str(part) for part in first["loc"] if not isinstance(part, str) or part.isidentifier())
    said = (
        "expected an object" if first["type"] == "model_type" else first["msg"]
    )  # pydantic's message would name a Python class
    return f"the request does not follow this protocol: {piece(where, 80)[1:-1] or 'its JSON'}: {said}"


def json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON body that the route parses itself, without FastAPI."""
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
