"""TensorFlow Serving's REST API: `/v1/models/NAME…`. KServe's first protocol has the same form.

Values are given as rows, `{"instances": [{"text": "a"}, {"text": "b"}]}`, or as columns, `{"inputs": {"text":
["a", "b"]}}`; a model with one input also takes them without its name. The answer has the same form. Bytes are
`{"b64": "…"}`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from headwise.errors import RequestRefused
from headwise.server.engine import Engine, Served
from headwise.server.protocols import tensorflow_serving as tf
from headwise.server.protocols.answers import answers
from headwise.server.protocols.columns import check_count, check_names, flat, make_array, make_rows, take_cell
from headwise.server.protocols.errors import bad_input, piece
from headwise.server.protocols.routes import Route, add_of_model, checked, json_body, json_of, parsed
from headwise.tasks.columns import Column, Row


class Predict(BaseModel):
    """The body of a prediction: its inputs, as rows or as columns."""

    model_config = ConfigDict(json_schema_extra={"example": {"instances": [{"text": "a text"}]}})

    signature_name: str = ""
    instances: list[Any] | None = None
    inputs: Any = None


class Classify(BaseModel):
    """The body of a classification: the examples; `context` holds features that all examples share."""

    model_config = ConfigDict(json_schema_extra={"example": {"examples": [{"text": "a text"}]}})

    signature_name: str = ""
    context: dict[str, Any] = {}
    examples: Annotated[list[dict[str, Any]], Field(fail_fast=True)]


def router(engine: Engine) -> APIRouter:
    """Return the routes of the protocol, for an application with `Limits` around it."""
    routes = APIRouter(prefix="/v1", route_class=Route)

    @routes.get("/models", summary="The names of the models")
    async def v1_models() -> Response:
        names = sorted({served.name for served in engine.models()})
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "headwise"} for name in names]
        return json_of({"models": names, "object": "list", "data": listed})  # names of both KServe and OpenAI

    async def v1_status(_: Request, name: str, version: str | None) -> Response:
        found = tf.statuses(engine, name, version)
        status = [
            {
                "version": served.version,
                "state": "AVAILABLE" if served.ready else "LOADING",
                "status": {"error_code": "OK", "error_message": ""},
            }
            for served in found
        ]
        return json_of({"model_version_status": status, "name": name, "ready": found[0].ready})  # both have their names

    async def v1_metadata(_: Request, name: str, version: str | None) -> Response:
        served = engine.find(name, version)
        return json_of(
            {
                "model_spec": {"name": served.name, "signature_name": "", "version": served.version},
                "metadata": {"signature_def": {"signature_def": {tf.SIGNATURE: tf.signature(served.description)}}},
            }
        )

    async def v1_predict(request: Request, name: str, version: str | None) -> Response:
        served = engine.find(name, version)
        asked = checked(Predict, parsed(await request.body()))
        tf.check_signature(asked.signature_name)
        if (asked.instances is None) == (asked.inputs is None):
            raise bad_input('expected either "instances" (rows) or "inputs" (columns)')
        rows = _read_columns(served, asked.inputs) if asked.instances is None else _read_rows(served, asked.instances)
        answered = await answers(engine, served, rows)
        if asked.instances is None:
            return json_of({"outputs": _in_columns(served.description.outputs, answered)})
        return json_of({"predictions": [_in_row(served.description.outputs, row) for row in answered]})

    async def v1_classify(request: Request, name: str, version: str | None) -> Response:
        served = engine.find(name, version)
        tf.classifier(served.description)
        asked = checked(Classify, parsed(await request.body()))
        tf.check_signature(asked.signature_name)
        rows = _read_rows(served, [asked.context | example for example in asked.examples])
        answered = await answers(engine, served, rows)
        return json_of({"result": tf.classes(served, answered)})

    async def v1_regress(_: Request, name: str, version: str | None) -> Response:
        engine.find(name, version)
        raise tf.refuse_to_regress()

    for verb, function, summary, asked in (  # before the other routes, which would read the verb as a part of the name
        ("predict", v1_predict, "Predict rows or columns", Predict),
        ("classify", v1_classify, "The probability of each label", Classify),
        ("regress", v1_regress, "Always refused: regression is not supported", Classify),
    ):
        extra = {"requestBody": json_body(asked)}
        add_of_model(routes, f":{verb}", function, summary, methods=["POST"], openapi_extra=extra)
    add_of_model(routes, "", v1_status, "The state of a model")
    add_of_model(routes, "/metadata", v1_metadata, "The inputs and outputs of a model")
    return routes


def _read_rows(served: Served, instances: Sequence[Any]) -> list[Row]:
    check_count(len(instances))
    return [_row(served.description.inputs, instance, number) for number, instance in enumerate(instances)]


def _read_columns(served: Served, given: Any) -> list[Row]:
    named = _named(served.description.inputs, given)
    for name, values in named.items():
        if not isinstance(values, list):
            raise bad_input(f"input {piece(name)}: expected a list with one value per row")
    if len({len(values) for values in named.values()}) > 1:
        raise bad_input("expected the same number of rows in each input")
    check_count(len(next(iter(named.values()), [])))
    return _read_rows(served, [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)])


def _row(columns: Sequence[Column], instance: Any, number: int) -> Row:
    """Read one row of a request. Rows may differ in their optional inputs and in the lengths of their lists."""
    try:
        named = _named(columns, instance)
        check_names(columns, list(named))
        return make_rows(columns, {c.name: _array(c, named[c.name]) for c in columns if c.name in named})[0]
    except RequestRefused as error:
        raise RequestRefused(error.kind, f"row {number} (from 0): {error}") from error


def _named(columns: Sequence[Column], value: Any) -> dict[str, Any]:
    """Return the values of a row by column name. A value that is no JSON object belongs to the only required input."""
    if isinstance(value, dict) and set(value) != {"b64"}:
        return value
    must = [column for column in columns if not column.optional]
    if len(columns) > 1 and len(must) != 1:
        names = ", ".join(column.name for column in columns)
        raise bad_input(f"expected an object with the inputs {names}")
    return {(must or columns)[0].name: value}


def _array(column: Column, value: Any) -> np.ndarray:
    """Convert the JSON value of one row to an array [1, *shape] of the column's dtype."""
    shape, level = [1], [value]
    for _ in column.shape:  # the shape of the first lists; flat() checks the others
        level = level[0] if level and isinstance(level[0], list) else []
        shape.append(len(level))
    elements = flat([value], shape)
    fits = all(size > 0 and want in (-1, size) for want, size in zip(column.shape, shape[1:], strict=True))
    if elements is None or not fits:
        expected = "one value, not a list" if not column.shape else f"a list of the shape {list(column.shape)}"
        raise bad_input(f"input {column.name}: expected {expected}{', -1 = any size' * (-1 in column.shape)}")
    if column.datatype == "BYTES":
        elements = [_bytes(column, element) if isinstance(element, dict) else element for element in elements]
        if column.binary and not all(isinstance(element, bytes) for element in elements):
            raise bad_input(f'input {column.name}: expected bytes, {{"b64": "…"}}')
    return make_array(column, elements, f"input {column.name}").reshape(shape)


def _bytes(column: Column, element: dict[str, Any]) -> bytes:
    encoded = element.get("b64")
    if not isinstance(encoded, str) or len(element) != 1:
        raise bad_input(f'input {column.name}: expected a value, or {{"b64": "…"}}')
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_input(f"input {column.name}: expected base64 in b64. Received: {piece(encoded, 20)}") from error


def _in_row(columns: Sequence[Column], row: Row) -> Any:
    """Convert an answer to JSON: name of an output -> its value; the value alone if the model has only one output."""
    cells = {column.name: (column, take_cell(column, row)) for column in columns}
    values = {name: _plain(*cell) for name, cell in cells.items() if cell[1] is not None}
    return values if len(columns) > 1 else values[columns[0].name]


def _in_columns(columns: Sequence[Column], rows: Sequence[Row]) -> Any:
    values = {column.name: [_plain(column, take_cell(column, row)) for row in rows] for column in columns}
    return values if len(columns) > 1 else values[columns[0].name]


def _plain(column: Column, cell: Any) -> Any:
    """Convert a value of an answer to JSON: bytes to {"b64": …}, arrays to lists."""
    if isinstance(cell, np.ndarray) and column.datatype != "BYTES":
        return np.ascontiguousarray(cell)  # so float32 is written with its own number of digits
    if isinstance(cell, np.ndarray):
        cell = cell.tolist()
    if isinstance(cell, list):
        return [_plain(column, part) for part in cell]
    return {"b64": base64.b64encode(cell).decode()} if isinstance(cell, bytes) else cell
