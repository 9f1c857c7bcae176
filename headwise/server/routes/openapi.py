"""The OpenAPI description: plain routes from the columns of the models, protocols from FastAPI."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headwise.server.auth import OPEN
from headwise.server.engine import Engine, Served
from headwise.server.interface import DTYPES, Column
from headwise.server.routes.rows import plain

Schema = dict[str, Any]

SAYS = """Trained tasks over HTTP. A row is an object with a value for each column of the model; several rows are
`{"rows": [...]}`, and an invalid row has an error in its place."""

_KINDS = ["bad_input", "unauthorized", "not_found", "too_large", "busy", "failed", "unavailable", "timeout"]
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
    paths = {f"/{task}": _task(task, _of(served, task)) for task in sorted({each.description.task for each in served})}
    if explaining := [each for each in served if each.description.explains]:
        paths["/explain"] = _explain(explaining)
    protocols = document.get("paths", {})
    document["paths"] = {**paths, **protocols, **copy.deepcopy(_GENERAL)}
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas |= {"Error": _ERROR}
    for each in served:
        schemas[_name(each, "Row")] = _row(each.description.inputs, takes=True, example=_example(each))
        schemas[_name(each, "Answer")] = _answer(each)
    components["responses"] = {
        f"Error{code}": {
            "description": says,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            **({"headers": _RETRY} if code in ("429", "503") else {}),
        }
        for code, says in _ERRORS.items()
    }
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _add_errors(operation, is_open=path in OPEN or not token)
    return document


def _of(served: Sequence[Served], task: str) -> list[Served]:
    return [each for each in served if each.description.task == task]


def _task(task: str, served: Sequence[Served]) -> Schema:
    streams = [each for each in served if each.description.streams]
    answers = [_reference(each, "Answer") for each in served]
    answered: Schema = {"application/json": {"schema": {"anyOf": [*answers, _several(answers)]}}}
    if streams:
        answered["text/event-stream"] = {"schema": _EVENT}
    more = {"stream": {"type": "boolean"}} if streams else {}
    says = "The rows; an invalid row has an error in its place."
    rows = {"rows": {"type": "array", "items": {}, "minItems": 1, "description": says}}
    several = [_object({**_model(served, each), **rows}, ["rows", *_needed(served)]) for each in served]
    body = {"anyOf": [*(_inline(each, served, more) for each in served), *several]}
    return {
        "post": {
            "tags": ["tasks"],
            "operationId": task,
            "summary": f"Predict with a model of the task {task}",
            "description": _columns_said(served),
            "parameters": _parameters(served),
            "requestBody": _body(body, served),
            "responses": {"200": {"description": "The answer.", "content": answered}},
        }
    }


def _explain(served: Sequence[Served]) -> Schema:
    answered = {
        "application/json": {"schema": {"type": "object"}},
        "text/html": {"schema": {"type": "string"}},
    }
    page = {
        "name": "page",
        "in": "query",
        "description": "The page that shows the attention, instead of its statistics.",
        "schema": {"enum": ["true", "false"]},
    }
    body = {"anyOf": [_inline(each, served, {}) for each in served]}
    return {
        "post": {
            "tags": ["tasks"],
            "operationId": "explain",
            "summary": "The attention of a model on one row",
            "description": _columns_said(served),
            "parameters": [*_parameters(served), page],
            "requestBody": _body(body, served),
            "responses": {
                "200": {"description": "Statistics of each attention layer, or the page.", "content": answered}
            },
        }
    }


def _parameters(served: Sequence[Served]) -> list[Schema]:
    version = {
        "name": "version",
        "in": "query",
        "description": "The version of the model. Default: the newest.",
        "schema": {"enum": sorted({each.version for each in served})},
    }
    if _needed(served):
        return [version]  # ?model= works too, but OpenAPI cannot say that one of both is required
    model = {
        "name": "model",
        "in": "query",
        "description": "The only model.",
        "schema": {"enum": sorted({each.name for each in served})},
    }
    return [model, version]


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


def _body(schema: Schema, served: Sequence[Served]) -> Schema:
    examples = {
        each.name: {"value": {**_example(each), **dict.fromkeys(_needed(served), each.name)}}
        for each in served
        if each.description.example is not None
    }
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}


def _inline(one: Served, served: Sequence[Served], more: Schema) -> Schema:
    """A row with the keys allowed beside its columns; a column with the same name takes precedence."""
    row = _row(one.description.inputs, takes=True)
    properties = {**_model(served, one), **more, **row["properties"]}
    return {**_object(properties, [*row["required"], *_needed(served)]), "title": f"a row of {one.name}"}


def _object(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _row(columns: Sequence[Column], *, takes: bool, example: Schema | None = None) -> Schema:
    row: Schema = {
        "type": "object",
        "properties": {column.name: _cell(column, takes) for column in columns},
        "required": [column.name for column in columns if not column.optional],
    }
    if takes:
        row["additionalProperties"] = False
    if example:
        row["examples"] = [example]
    return row


def _answer(served: Served) -> Schema:
    answer = _row(served.description.outputs, takes=False)
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


def _several(answers: list[Schema]) -> Schema:
    error = {"$ref": "#/components/schemas/Error"}
    rows = {"type": "array", "items": {"anyOf": [*answers, error]}}
    return {"type": "object", "properties": {"rows": rows}, "required": ["rows"]}


def _reference(served: Served, part: str) -> Schema:
    return {"$ref": f"#/components/schemas/{_name(served, part)}"}


def _name(served: Served, part: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{served.name}.{served.version}")
    return f"{name}.{part}"


def _example(served: Served) -> dict[str, Any]:
    """The example row of a model as JSON."""
    return {name: plain(cell) for name, cell in (served.description.example or {}).items()}


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


def _add_errors(operation: Schema, *, is_open: bool) -> None:
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)  # FastAPI adds it; here the status is 400
    for code in _ERRORS:
        if code == "401" and is_open:
            continue
        responses.setdefault(code, {"$ref": f"#/components/responses/Error{code}"})
    if not is_open:
        operation["security"] = [{"token": []}]


def _plain_text(summary: str, answers: dict[str, str], media_type: str = "text/plain") -> Schema:
    content = {media_type: {"schema": {"type": "string"}}}
    responses = {code: {"description": says, "content": content} for code, says in answers.items()}
    return {"get": {"tags": ["server"], "summary": summary, "responses": responses}}


_BASE64 = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_TEXT: Schema = {"type": "string"}
_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "What happened, and what to do."},
        "kind": {"enum": _KINDS, "description": "The kind of error, on plain routes."},
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
_GENERAL = {
    "/livez": _plain_text("Whether the process works", {"200": "It works.", "503": "It does not work."}),
    "/readyz": _plain_text("Whether every model can answer", {"200": "They can.", "503": "They cannot (yet)."}),
    "/metrics": _plain_text("Metrics for Prometheus", {"200": "Prometheus's text format."}),
}
