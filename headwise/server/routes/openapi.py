"""The OpenAPI description: plain routes from the columns of the models, protocols from FastAPI."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headwise.errors import RefusalKind
from headwise.server.auth import is_open
from headwise.server.engine import Engine, Served
from headwise.server.routes.rows import plain
from headwise.tasks.columns import DTYPES, Column

Schema = dict[str, Any]

SAYS = """Trained tasks over HTTP. A row is an object with a value for each column of the model; several rows are
`{"rows": [...]}`, and an invalid row has an error in its place."""

_RETRY = {"Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}}
_ERRORS = {
    "400": "The body or a value in it is invalid.",
    "401": "The token is missing or wrong.",
    "403": "The request comes from a page of another site, or has a foreign host name.",
    "404": "No such model or version.",
    "405": "This path expects another method.",
    "408": "The body took too long to arrive.",
    "413": "The body, or a row, is too large.",
    "415": "The Content-Encoding of the body is not supported.",
    "422": "The body is not one of the protocol (/embed).",
    "424": "The model failed (/embed).",
    "429": "The queue is full.",
    "500": "The server failed.",
    "503": "The server is starting or stopping, or a worker died.",
    "504": "The request took longer than its time limit.",
}


def describe(app: FastAPI, engine: Engine, *, token: bool) -> Schema:
    """The OpenAPI description of the loaded models.

    Args:
        token: whether requests need a token.
    """
    document = get_openapi(title=app.title, version=app.version, description=SAYS, routes=app.routes)
    served = engine.models()
    plain_routes = {}
    for task in sorted({each.description.task for each in served}):
        plain_routes[f"/{task}"] = _task(task, [each for each in served if each.description.task == task])
    if explaining := [each for each in served if each.description.explains]:
        plain_routes["/explain"] = _explain(explaining)
    document["paths"] = {**plain_routes, **document.get("paths", {})}
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update({_name(each): _answer(each) for each in served}, Error=_ERROR)
    components["responses"] = {
        f"Error{code}": {
            "description": says,
            "content": {"application/json": {"schema": _reference("Error")}},
            **({"headers": _RETRY} if code in ("429", "503") else {}),
        }
        for code, says in _ERRORS.items()
    }
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _add_errors(operation, without_token=is_open(path) or not token)
    return document


def _task(task: str, served: Sequence[Served]) -> Schema:
    streams = any(each.description.streams for each in served)
    answers = [_reference(_name(each)) for each in served]
    several = _object({"rows": {"type": "array", "items": {"anyOf": [*answers, _reference("Error")]}}}, ["rows"])
    answered: Schema = {"application/json": {"schema": {"anyOf": [*answers, several]}}}
    if streams:
        answered["text/event-stream"] = {"schema": _EVENT}
    says = "The rows; an invalid row has an error in its place."
    rows = {"rows": {"type": "array", "items": {}, "minItems": 1, "description": says}}
    needed = _needed(served)
    bodies = [_only({**_model(served, each), **rows}, ["rows", *needed]) for each in served]
    return _post(
        served,
        {"operationId": task, "summary": f"Predict with a model of the task {task}"},
        bodies=[*_rows(served, {"stream": {"type": "boolean"}} if streams else {}), *bodies],
        answer={"description": "The answer.", "content": answered},
    )


def _explain(served: Sequence[Served]) -> Schema:
    kinds = {"application/json": "object", "text/html": "string"}
    content = {media_type: {"schema": {"type": kind}} for media_type, kind in kinds.items()}
    return _post(
        served,
        {"operationId": "explain", "summary": "The attention of a model on one row"},
        bodies=_rows(served, {}),
        answer={"description": "Statistics of each attention layer, or the page.", "content": content},
        page=_parameter("page", "The page that shows the attention, instead of its statistics.", {"true", "false"}),
    )


def _post(
    served: Sequence[Served], says: Schema, *, bodies: list[Schema], answer: Schema, **parameters: Schema
) -> Schema:
    """A plain route of some models: the bodies that it takes, and what it answers."""
    versions = {each.version for each in served}
    given = [_parameter("version", "The version of the model. Default: the newest.", versions), *parameters.values()]
    if not _needed(served):  # ?model= always works, but OpenAPI cannot say that it or the body must have it
        given.insert(0, _parameter("model", "The only model.", {each.name for each in served}))
    examples = {
        each.name: {"value": {**plain(each.description.example), **dict.fromkeys(_needed(served), each.name)}}
        for each in served
        if each.description.example is not None
    }
    content = {"application/json": {"schema": {"anyOf": bodies}, "examples": examples}}
    operation = {
        **says,
        "tags": ["tasks"],
        "description": _columns_said(served),
        "parameters": given,
        "requestBody": {"required": True, "content": content},
        "responses": {"200": answer},
    }
    return {"post": operation}


def _parameter(name: str, says: str, values: Iterable[str]) -> Schema:
    return {"name": name, "in": "query", "description": says, "schema": {"enum": sorted(values)}}


def _needed(served: Sequence[Served]) -> list[str]:
    """Whether a request has to name a model."""
    return ["model"] if len({each.name for each in served}) > 1 else []


def _model(served: Sequence[Served], one: Served) -> Schema:
    return {
        "model": {
            "const": one.name,
            "description": "The name of the model; or use ?model=NAME." if _needed(served) else "",
        }
    }


def _rows(served: Sequence[Served], more: Schema) -> list[Schema]:
    """A row of each model with the keys allowed beside its columns; a column with the same name takes precedence."""
    found = []
    for each in served:
        row = _columns(each.description.inputs, takes=True)
        body = _only({**_model(served, each), **more, **row["properties"]}, [*row["required"], *_needed(served)])
        found.append({**body, "title": f"a row of {each.name}"})
    return found


def _columns(columns: Sequence[Column], *, takes: bool) -> Schema:
    required = [column.name for column in columns if not column.optional]
    return _object({column.name: _cell(column, takes) for column in columns}, required)


def _object(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _only(properties: Schema, required: list[str]) -> Schema:
    """An object with these keys and no others."""
    return {**_object(properties, required), "additionalProperties": False}


def _answer(served: Served) -> Schema:
    answer = _columns(served.description.outputs, takes=False)
    labels = served.description.labels
    for column in served.description.outputs:
        if labels and column.datatype.startswith("FP") and column.shape in ((len(labels),), (-1,)):
            by_label = {label: _number(column, takes=False) for label in labels}
            answer["properties"][column.name] = {"type": "object", "properties": by_label, "description": column.says}
    return answer


def _cell(column: Column, takes: bool) -> Schema:
    schema = _number(column, takes)
    for size in reversed(column.shape):
        schema = {"type": "array", "items": schema}
        if size != -1:
            schema |= {"minItems": size, "maxItems": size}
    if column.optional:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "description": column.says} if column.says else schema


def _number(column: Column, takes: bool) -> Schema:
    """The schema of a single value."""
    if column.datatype == "BYTES":
        return _BASE64 if column.binary else _TEXT
    if column.datatype == "BOOL":
        return {"type": "boolean"}
    if column.datatype.startswith("INT"):
        bounds = np.iinfo(DTYPES[column.datatype])
        return {"type": "integer", "minimum": int(bounds.min), "maximum": int(bounds.max)}
    if not takes:
        return {"type": ["number", "null"]}  # null: NaN
    most = float(np.finfo(DTYPES[column.datatype]).max)
    return {"type": "number", "minimum": -most, "maximum": most}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _name(served: Served) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{served.name}.{served.version}")
    return f"{name}.Answer"


def _columns_said(served: Sequence[Served]) -> str:
    """A description of each column of each model, one per line."""
    lines = []
    for each in {each.name: each for each in served}.values():  # the newest of several versions
        lines.append(f"**{each.name}** takes")
        for column in each.description.inputs:
            may = ", optional" if column.optional else ""
            lines.append(f"- `{column.name}`{may}{': ' + column.says if column.says else ''}")
        given = ", ".join(f"`{column.name}`" for column in each.description.outputs)
        lines.append(f"\nand returns {given}.\n")
    return "\n".join(lines)


def _add_errors(operation: Schema, *, without_token: bool) -> None:
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)  # FastAPI adds it; here the status is 400
    for code in _ERRORS:
        if code == "401" and without_token:
            continue
        responses.setdefault(code, {"$ref": f"#/components/responses/Error{code}"})
    if not without_token:
        operation["security"] = [{"token": []}]


_BASE64 = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_TEXT: Schema = {"type": "string"}
_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "anyOf": [{"type": "string"}, {"type": "object", "required": ["message"]}],  # an object: OpenAI's
            "description": "What happened, and what to do.",
        },
        "kind": {"enum": list(get_args(RefusalKind)), "description": "The kind of error, on plain routes."},
    },
    "required": ["error"],
}
_EVENT = {
    "type": "object",
    "description": 'Each event has a piece of the text; "done" has the whole text; "error" has an error.',
    "properties": {
        "event": {"enum": ["message", "done", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
