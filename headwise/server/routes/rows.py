"""Rows as plain JSON has them: {"text": "…"}, each column by its name, and back."""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

import numpy as np

from headwise.errors import RequestRefused
from headwise.server.interface import DTYPES, Column, Description, Row

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
    """The JSON object of a body. Raises RequestRefused "bad_input", without a word of what was in it."""
    try:
        read = json.loads(body.decode("utf-8-sig"), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise _bad(f"the body: expected UTF-8, received another byte at place {error.start}") from error
    except json.JSONDecodeError as error:
        raise _bad(
            f"the body is not JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise _bad("the body: JSON that is nested too deep") from error
    except ValueError as error:  # NaN, or a whole number of thousands of digits
        raise _bad("the body: a number that cannot be used") from error
    if not isinstance(read, dict):
        raise _bad(f"the body: expected a JSON object, received {_shown(read)}")
    return read


def row_of(cells: Any, description: Description) -> Row:
    """A JSON object as a row of the model. A column that may be missing may also be null.

    Raises:
        RequestRefused: "bad_input": a column that is missing, unknown, or not of its kind or shape.
    """
    if not isinstance(cells, dict):
        raise _bad(f"a row: expected an object of {_names(description)}, received {_shown(cells)}")
    known = {column.name for column in description.inputs}
    if unknown := [name for name in cells if name not in known]:
        raise _bad(f"a row has {_names(description)}; received {_quoted(unknown[0])}")
    row: Row = {}
    for column in description.inputs:
        cell = cells.get(column.name)
        if cell is None:
            if not column.optional:
                raise _bad(f"{column.name!r} is missing: a row has {_names(description)}")
            continue
        row[column.name] = _cell(cell, column)
    return row


def cells_of(row: Row, description: Description) -> dict[str, Any]:
    """A row that a model gave, as JSON has it; probabilities of labels by label; null for what is no number."""
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
    """A value as JSON has it: bytes in base64, arrays as lists, NaN and infinity as null."""
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
        raise _bad(f"{column.name!r}: expected the shape {_shape(column.shape)}, received {_shape(shape)}")
    values = np.empty(len(flat), DTYPES[column.datatype])
    values[:] = flat
    return values.reshape(shape)


def _flatten(cell: Any, column: Column, depth: int, flat: list[Any]) -> tuple[int, ...]:
    """Gather the single values of nested lists, which are `depth` deep, and give their shape."""
    if depth == 0:
        flat.append(_single(cell, column))
        return ()
    if not isinstance(cell, list):
        kind = f"lists of the shape {_shape(column.shape)}"
        raise _bad(f"{column.name!r}: expected {kind}, received {_shown(cell)}")
    shapes = {_flatten(each, column, depth - 1, flat) for each in cell}
    if len(shapes) > 1:
        raise _bad(f"{column.name!r}: expected lists of one length, received lists of several")
    return (len(cell), *(shapes.pop() if shapes else (0,) * (depth - 1)))


def _single(cell: Any, column: Column) -> Any:
    wanted = _KINDS[column.datatype]
    if column.datatype.startswith("INT") and isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # to JSON, 1.0 is 1
    if not isinstance(cell, wanted) or (isinstance(cell, bool) and bool not in wanted):
        expected = "base64" if column.binary else _WORDS.get(column.datatype, f"a number ({column.datatype})")
        raise _bad(f"{column.name!r}: expected {expected}, received {_shown(cell)}")
    if column.datatype == "BYTES":
        return _bytes(cell, column) if column.binary else _text(cell, column)
    if column.datatype.startswith("INT"):
        bounds = np.iinfo(DTYPES[column.datatype])
        if not bounds.min <= cell <= bounds.max:
            raise _bad(f"{column.name!r}: a number that {column.datatype} cannot hold")
    elif column.datatype.startswith("FP"):
        try:
            cell = float(cell)
        except OverflowError:
            cell = math.inf
        if not abs(cell) <= float(np.finfo(DTYPES[column.datatype]).max):
            raise _bad(f"{column.name!r}: a number that {column.datatype} cannot hold")
    return cell


def _text(cell: str, column: Column) -> str:
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _bad(f"{column.name!r}: expected text, received half of a surrogate pair") from error
    return cell


def _bytes(cell: str, column: Column) -> bytes:
    try:
        return base64.b64decode("".join(cell.split()), validate=True)  # in lines, as programs write it, too
    except (binascii.Error, ValueError) as error:
        raise _bad(f"{column.name!r}: expected base64, received something else") from error


def _names(description: Description) -> str:
    names = [f"{column.name!r}{' (may be missing)' if column.optional else ''}" for column in description.inputs]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _quoted(name: str) -> str:
    return repr(name if len(name) <= 40 else f"{name[:39]}…")


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('any' if size == -1 else str(size) for size in shape)}]"


def _shown(value: Any) -> str:
    """What kind of JSON a value is."""
    if value is None:
        return "null"
    kinds = {bool: "true or false", str: "a text", dict: "an object", list: "a list"}
    return next((word for kind, word in kinds.items() if isinstance(value, kind)), "a number")


def _no_number(_: str) -> float:
    raise ValueError


def _bad(message: str) -> RequestRefused:
    return RequestRefused("bad_input", message)
