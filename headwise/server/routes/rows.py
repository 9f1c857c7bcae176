"""Converts the JSON objects of plain routes, such as {"text": "…"}, to rows, and answers to JSON objects."""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

import numpy as np

from headwise.errors import brief
from headwise.server.interface import Description
from headwise.server.protocols.errors import bad_input
from headwise.tasks.columns import DTYPES, Column, Row

_KINDS: dict[str, Any] = {
    "BYTES": (str,),
    "BOOL": (bool,),
    "INT32": (int,),
    "INT64": (int,),
    "FP32": (int, float),
    "FP64": (int, float),
}
_WORDS = {"BYTES": "a text", "BOOL": "true or false"}


def read_object(body: bytes) -> dict[str, Any]:
    """Parse the JSON object in a body. Raises RequestRefused "bad_input"; its message quotes nothing of the body."""
    try:
        read = json.loads(body.decode("utf-8-sig"), parse_constant=_no_number, object_pairs_hook=_no_twins)
    except UnicodeDecodeError as error:
        raise bad_input(f"the body: expected UTF-8. Received: an invalid byte at offset {error.start}") from error
    except json.JSONDecodeError as error:
        raise bad_input(
            f"the body is not JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise bad_input("the body: the JSON is nested too deeply") from error
    except ValueError as error:  # NaN, or an integer with thousands of digits
        raise bad_input("the body: a number is NaN, infinite or too long") from error
    if not isinstance(read, dict):
        raise bad_input(f"the body: expected a JSON object. Received: {_shown(read)}")
    return read


def make_row(cells: Any, description: Description) -> Row:
    """Turn a JSON object into a row of the model. An optional column may also be null.

    Raises:
        RequestRefused: "bad_input": a column is missing, unknown, or has a wrong type or shape.
    """
    if not isinstance(cells, dict):
        raise bad_input(f"a row: expected an object with {_names(description)}. Received: {_shown(cells)}")
    known = {column.name for column in description.inputs}
    if unknown := [name for name in cells if name not in known]:
        raise bad_input(f"unknown column: expected {_names(description)}. Received: {brief(unknown[0], 40)}")
    row: Row = {}
    for column in description.inputs:
        cell = cells.get(column.name)
        if cell is None:
            if not column.optional:
                raise bad_input(f"{column.name!r} is missing. Expected: {_names(description)}")
            continue
        row[column.name] = _cell(cell, column)
    return row


def cells_of(row: Row, description: Description) -> dict[str, Any]:
    """Convert an answer to JSON data: probabilities become an object by label, NaN and infinity become null."""
    columns = {column.name: column for column in description.outputs}
    cells = {}
    for name, value in row.items():
        shown = plain(value)
        column = columns.get(name)
        is_of_labels = column is not None and len(column.shape) == 1 and column.datatype.startswith("FP")
        if is_of_labels and description.labels and len(shown) == len(description.labels):
            shown = dict(zip(description.labels, shown, strict=True))
        cells[name] = shown
    return cells


def plain(value: Any) -> Any:
    """Convert a value to JSON data: bytes to base64, arrays to lists, NaN and infinity to null."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value


def _cell(cell: Any, column: Column) -> Any:
    if column.shape == ():
        return _single(cell, column)
    flat: list[Any] = []
    shape = _flatten(cell, column, len(column.shape), flat)
    if any(want not in (-1, got) for want, got in zip(column.shape, shape, strict=True)):
        raise bad_input(f"{column.name!r}: expected the shape {_shape(column.shape)}. Received: {_shape(shape)}")
    values = np.empty(len(flat), DTYPES[column.datatype])
    values[:] = flat
    return values.reshape(shape)


def _flatten(cell: Any, column: Column, depth: int, flat: list[Any]) -> tuple[int, ...]:
    """Append the elements of nested lists, `depth` levels deep, to `flat`, and return their shape."""
    if depth == 0:
        flat.append(_single(cell, column))
        return ()
    if not isinstance(cell, list):
        kind = f"lists of the shape {_shape(column.shape)}"
        raise bad_input(f"{column.name!r}: expected {kind}. Received: {_shown(cell)}")
    shapes = {_flatten(each, column, depth - 1, flat) for each in cell}
    if len(shapes) > 1:
        raise bad_input(f"{column.name!r}: expected lists of equal lengths. Received: different lengths")
    return (len(cell), *(shapes.pop() if shapes else (0,) * (depth - 1)))


def _single(cell: Any, column: Column) -> Any:
    wanted = _KINDS[column.datatype]
    if column.datatype.startswith("INT") and isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # in JSON, 1.0 equals 1
    if not isinstance(cell, wanted) or (isinstance(cell, bool) and bool not in wanted):
        number = "a whole number" if column.datatype.startswith("INT") else "a number"
        expected = "base64" if column.binary else _WORDS.get(column.datatype, f"{number} ({column.datatype})")
        received = brief(cell, 40) if isinstance(cell, float) else _shown(cell)
        raise bad_input(f"{column.name!r}: expected {expected}. Received: {received}")
    if column.datatype == "BYTES":
        return _bytes(cell, column) if column.binary else _text(cell, column)
    if column.datatype.startswith("INT"):
        bounds = np.iinfo(DTYPES[column.datatype])
        if not bounds.min <= cell <= bounds.max:
            raise bad_input(f"{column.name!r}: a number is out of range for {column.datatype}")
    elif column.datatype.startswith("FP"):
        try:
            cell = float(cell)
        except OverflowError:
            cell = math.inf
        if not abs(cell) <= float(np.finfo(DTYPES[column.datatype]).max):
            raise bad_input(f"{column.name!r}: a number is out of range for {column.datatype}")
    return cell


def _text(cell: str, column: Column) -> str:
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError as error:
        raise bad_input(f"{column.name!r}: expected text. Received: a lone surrogate") from error
    return cell


def _bytes(cell: str, column: Column) -> bytes:
    try:
        return base64.b64decode("".join(cell.split()), validate=True)  # allow line breaks, which many encoders insert
    except (binascii.Error, ValueError) as error:
        raise bad_input(f"{column.name!r}: expected base64. Received: other text") from error


def _names(description: Description) -> str:
    names = [f"{column.name!r}{' (optional)' if column.optional else ''}" for column in description.inputs]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('any' if size == -1 else str(size) for size in shape)}]"


def _shown(value: Any) -> str:
    """Name the JSON type of a value, for messages."""
    if value is None:
        return "null"
    kinds = {bool: "true or false", str: "a text", dict: "an object", list: "a list"}
    return next((word for kind, word in kinds.items() if isinstance(value, kind)), "a number")


def _no_number(_: str) -> float:
    raise ValueError


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise bad_input("the body: a name stands twice in one JSON object")
    return found
