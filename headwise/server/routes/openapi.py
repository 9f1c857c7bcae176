"""The OpenAPI description of the server, made from the models' columns for plain routes, by FastAPI for protocols."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headwise.errors import RefusalKind
from headwise.language import said
from headwise.server.auth import is_open
from headwise.server.engine import Engine, Served
from headwise.server.protocols.routes import VERSIONED
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
    """Return the OpenAPI description of the loaded models.

    Args:
        token: whether requests need a token.
    """
    document = get_openapi(title=app.title, version=app.version, description=SAYS, routes=app.routes)
    served = engine.models()
    plain_routes = {}
    for task in sorted({each.description.task for each in served}):
        plain_routes[f"/{task}"] = {"post": _task(task, [each for each in served if each.description.task == task])}
    if explaining := [each for each in served if each.description.explains]:
        plain_routes["/explain"] = {"post": _explain(explaining)}
    document["paths"] = {**plain_routes, **document.get("paths", {})}
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for each in served:
        schemas[_name(each)] = _columns(each.description.outputs, takes=False, labels=each.description.labels)
    schemas["Error"] = _ERROR
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
            operation["tags"] = [said(tag) for tag in operation.get("tags", ())]
            summary, given, _ = operation.get("summary", "").partition(VERSIONED)
            operation["summary"] = said(summary) + said(given)
            operation["responses"].pop("422", None)  # FastAPI adds it; here the status is 400
            errors = {code: {"$ref": f"#/components/responses/Error{code}"} for code in _ERRORS}
            if token and not is_open(path):
                operation["security"] = [{"token": []}]
            else:
                del errors["401"]
            operation["responses"] = errors | operation["responses"]
    return document


def _task(task: str, served: Sequence[Served]) -> Schema:
    answers = [_reference(_name(each)) for each in served]
    several = _object({"rows": {"type": "array", "items": {"anyOf": [*answers, _reference("Error")]}}}, ["rows"])
    content: Schema = {"application/json": {"schema": {"anyOf": [*answers, several]}}}
    streams = any(each.description.streams for each in served)
    if streams:
        content["text/event-stream"] = {"schema": _EVENT}
    return {
        **_asked(served, several=True, streams=streams),
        "operationId": task,
        "summary": said("Predict with a model of the task {task}", task=task),
        "responses": {"200": {"description": "The answer.", "content": content}},
    }


def _explain(served: Sequence[Served]) -> Schema:
    asked = _asked(served)
    page = "The page that shows the attention, instead of its statistics."
    asked["parameters"].append(_parameter("page", page, {"true", "false"}))
    content = {"application/json": {"schema": {"type": "object"}}, "text/html": {"schema": {"type": "string"}}}
    return {
        **asked,
        "operationId": "explain",
        "summary": "The attention of a model on one row",
        "responses": {"200": {"description": "Statistics of each attention layer, or the page.", "content": content}},
    }


def _asked(served: Sequence[Served], *, several: bool = False, streams: bool = False) -> Schema:
    """Return the OpenAPI description of a request to a plain route: a row of one of these models, or `several` rows."""
    names = {each.name for each in served}
    named = ["model"] if len(names) > 1 else []  # the keys that a request needs besides its columns
    beside: Schema = {"stream": {"type": "boolean"}} if streams else {}
    bodies, examples = [], {}
    for each in served:
        model = {"const": each.name, "description": "The name of the model; or use ?model=NAME." if named else ""}
        row = _columns(each.description.inputs)
        keys = {"model": model, **beside, **row["properties"]}  # a column with the name of another key takes precedence
        bodies.append({**_only(keys, [*row["required"], *named]), "title": f"a row of {each.name}"})
        if several:
            bodies.append(_only({"model": model, "rows": _ROWS}, ["rows", *named]))
        if each.description.example is not None:
            examples[each.name] = {"value": {**plain(each.description.example), **dict.fromkeys(named, each.name)}}
    parameters = [
        _parameter("version", "The version of the model. Default: the newest.", {each.version for each in served})
    ]
    if not named:  # ?model= always works, but OpenAPI cannot say that it or the body must have it
        parameters.insert(0, _parameter("model", "The only model.", names))
    content = {"application/json": {"schema": {"anyOf": bodies}, "examples": examples}}
    return {
        "tags": ["tasks"],
        "description": _columns_said(served),
        "parameters": parameters,
        "requestBody": {"required": True, "content": content},
    }


def _parameter(name: str, says: str, values: Iterable[str]) -> Schema:
    return {"name": name, "in": "query", "description": says, "schema": {"enum": sorted(values)}}


def _columns(columns: Sequence[Column], *, takes: bool = True, labels: Sequence[str] = ()) -> Schema:
    """Return the JSON schema of a row, an object with a key for each column.

    `takes`: whether the row is a request, not an answer; `labels`: the labels of a classifier, in answers.
    """
    required = [column.name for column in columns if not column.optional]
    return _object({column.name: _cell(column, takes, labels) for column in columns}, required)


def _object(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _only(properties: Schema, required: list[str]) -> Schema:
    """Return the schema of an object with these keys and no others."""
    return {**_object(properties, required), "additionalProperties": False}


def _cell(column: Column, takes: bool, labels: Sequence[str]) -> Schema:
    schema = _single(column, takes)
    if labels and column.datatype.startswith("FP") and column.shape in ((len(labels),), (-1,)):
        schema = {"type": "object", "properties": dict.fromkeys(labels, schema)}
    else:
        for size in reversed(column.shape):
            schema = {"type": "array", "items": schema}
            if size != -1:
                schema |= {"minItems": size, "maxItems": size}
    if column.optional:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "description": column.says} if column.says else schema


def _single(column: Column, takes: bool) -> Schema:
    """Return the schema of a single value of a column; `takes`: whether the value is in a request, not in an answer."""
    if column.datatype == "BYTES":
        return _BASE64 if column.binary else {"type": "string"}
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
    """Return a text with one line for each input column of each model, and the names of the outputs."""
    lines = []
    for each in {each.name: each for each in served}.values():  # the newest of several versions
        lines.append(said("**{name}** takes", name=each.name))
        for column in each.description.inputs:
            name = said("`{name}`, optional", name=column.name) if column.optional else f"`{column.name}`"
            lines.append(f"- {said('{name}: {says}', name=name, says=column.says) if column.says else name}")
        given = ", ".join(f"`{column.name}`" for column in each.description.outputs)
        lines.append(f"\n{said('and returns {given}.', given=given)}\n")
    return "\n".join(lines)


_ROWS = {
    "type": "array",
    "items": {},
    "minItems": 1,
    "description": "The rows; an invalid row has an error in its place.",
}
_BASE64 = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
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
