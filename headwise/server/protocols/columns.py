"""Converts rows of named columns to one array per column, and back, for the protocols that send tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.errors import RequestRefused
from headwise.server.interface import Description
from headwise.server.protocols.errors import bad_input, piece
from headwise.tasks.columns import DTYPES, Column, Row

MOST_ROWS = 8192  # per request: while one request is parsed, all others wait


def check_count(rows: int) -> None:
    """Raise RequestRefused unless a request has 1 to MOST_ROWS rows."""
    if rows < 1:
        raise bad_input("expected at least one row. Received: 0 rows")
    if rows > MOST_ROWS:
        raise RequestRefused("too_large", f"expected at most {MOST_ROWS} rows in one request. Received: {rows} rows")


def find_column(columns: Sequence[Column], name: str, kind: str = "input") -> Column:
    """Find the column with this name. Raises RequestRefused with the names of all columns if there is none."""
    for column in columns:
        if column.name == name:
            return column
    there = ", ".join(column.name for column in columns)
    raise bad_input(f"{kind} {piece(name)}: unknown {kind}. This model has: {there}")


def check_names(columns: Sequence[Column], names: Sequence[str]) -> None:
    """Raise RequestRefused if a required input is missing, an input is given twice, or an input is unknown."""
    for name in names:
        find_column(columns, name)
    for column in columns:
        if names.count(column.name) > 1:
            raise bad_input(f"input {column.name}: it is given more than once")
        if column.name not in names and not column.optional:
            raise bad_input(f"input {column.name}: it is missing")


def check_shape(column: Column, shape: Sequence[int]) -> None:
    """Raise RequestRefused unless `shape` is the shape [N, …] of N rows of the column, with N at least 1."""
    expected = (-1, *column.shape)
    fits = len(shape) == len(expected) and all(
        size > 0 and want in (-1, size) for size, want in zip(shape, expected, strict=True)
    )
    if not fits:
        why = ", but every size must be at least 1" if 0 in shape else ""
        raise bad_input(
            f"input {column.name}: expected the shape {list(expected)}, where -1 is any size. "
            f"Received: {piece(list(shape))}{why}"
        )
    check_count(shape[0])


def check_size(column: Column, shape: Sequence[int], size: int) -> None:
    """Raise RequestRefused unless the shape has `size` elements."""
    if math.prod(shape) != size:
        raise bad_input(
            f"input {column.name}: the shape {piece(list(shape))} has {math.prod(shape)} elements, the data {size}"
        )


def make_rows(columns: Sequence[Column], arrays: Mapping[str, np.ndarray]) -> list[Row]:
    """Turn one array per column into the rows of a request.

    Args:
        columns: the inputs of a model.
        arrays: name of a column -> array [N, *shape] of the column's dtype; BYTES are objects, each bytes or str.

    Raises:
        RequestRefused: "bad_input": wrong names, different numbers of rows, or invalid text.
    """
    check_names(columns, list(arrays))
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items()) or "none"
        raise bad_input(f"expected the same number of rows, at least 1, in each input. Received: {listed}")
    cells = {column.name: _cells(column, arrays[column.name]) for column in columns if column.name in arrays}
    return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]


def _cells(column: Column, array: np.ndarray) -> list[Any]:
    if column.datatype == "BYTES":
        array = _elements(column, array)
    return list(array.tolist() if not column.shape else array)


def _elements(column: Column, array: np.ndarray) -> np.ndarray:
    """Convert the elements of a BYTES array: to str if the column is text, otherwise to bytes."""
    elements = np.empty(array.size, np.object_)
    number = 0
    try:
        for number, value in enumerate(array.ravel().tolist()):
            elements[number] = _binary(value) if column.binary else _text(value)
    except UnicodeError as error:
        row = number // (array.size // len(array))
        raise bad_input(f"input {column.name}, row {row} (from 0): it is not UTF-8 text") from error
    return elements.reshape(array.shape)


def _text(value: bytes | str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    value.encode()  # raises for a lone surrogate
    return value


def _binary(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def make_array(column: Column, values: Sequence[Any], name: str) -> np.ndarray:
    """Make an array in the column's dtype from plain JSON values.

    Args:
        values: a flat list.
        name: the name of the column in error messages.

    Raises:
        RequestRefused: "bad_input": a value of another type, or out of range for the dtype.
    """
    kinds: dict[str, tuple[type, ...]] = {"BYTES": (str, bytes), "BOOL": (bool,), "INT32": (int,), "INT64": (int,)}
    wanted = kinds.get(column.datatype, (int, float))
    if not set(map(type, values)) <= set(wanted):
        wrong = next(value for value in values if type(value) not in wanted)
        said = {"BYTES": "text", "BOOL": "true or false", "INT32": "whole numbers", "INT64": "whole numbers"}
        raise bad_input(f"{name}: expected {said.get(column.datatype, 'numbers')}. Received: {_kind(wrong)}")
    if column.datatype == "BYTES":
        array = np.empty(len(values), np.object_)
        array[:] = values
        return array
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, DTYPES[column.datatype])
    except OverflowError as error:
        raise _too_large(column, name) from error
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise _too_large(column, name)
    return array


def _too_large(column: Column, name: str) -> RequestRefused:
    return bad_input(f"{name}: a number is out of range for {column.datatype}")


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "true or false", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number with a fraction" if isinstance(value, float) else "a number")


def flat(values: Any, shape: Sequence[int]) -> list[Any] | None:
    """Flatten nested lists of this shape into one list of their elements. None if the lists do not have this shape."""
    level = [values]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in level):
            return None
        level = [element for part in level for element in part]
    return None if any(isinstance(element, list) for element in level) else level


def make_arrays(description: Description, rows: Sequence[Row], names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Turn the answers to the N rows of a request into arrays: name of an output -> array [N, *shape].

    If rows have outputs of different lengths, shorter ones are padded with 0 or empty text. A missing output is NaN, 0
    or empty text.

    Args:
        names: the requested outputs, in order; () = all that at least one row has.

    Raises:
        RequestRefused: "bad_input": an unknown name.
    """
    wanted = [find_column(description.outputs, name, "output") for name in names]
    if not names:
        wanted = [c for c in description.outputs if not c.optional or any(row.get(c.name) is not None for row in rows)]
    return {column.name: _box(column, [take_cell(column, row) for row in rows]) for column in wanted}


def take_cell(column: Column, row: Row) -> Any:
    """Return the value of an answer in this output column; None if the column is optional and the answer lacks it."""
    if column.name not in row and not column.optional:  # the model was replaced after it was looked up
        raise RequestRefused("unavailable", "the model was replaced while it answered; try again", retry_after=1)
    return row.get(column.name)


def _box(column: Column, cells: Sequence[Any]) -> np.ndarray:
    dtype = DTYPES[column.datatype]
    nothing: Any = b"" if column.datatype == "BYTES" else 0
    if not column.shape:
        nothing = math.nan if column.datatype in ("FP32", "FP64") else nothing
        box = np.empty(len(cells), dtype)
        box[:] = [nothing if cell is None else _encoded(cell) for cell in cells]
        return box
    rank = len(column.shape)
    arrays = [np.zeros((0,) * rank, dtype) if cell is None else np.asarray(cell, dtype) for cell in cells]
    sizes = [max(array.shape[axis] for array in arrays) for axis in range(rank)]
    box = np.full((len(cells), *sizes), nothing, dtype)
    for row, array in zip(box, arrays, strict=True):
        corner = tuple(map(slice, array.shape))
        if column.datatype == "BYTES":
            elements = np.empty(array.size, np.object_)
            elements[:] = [_encoded(element) for element in array.ravel().tolist()]
            row[corner] = elements.reshape(array.shape)
        else:
            row[corner] = array
    return box


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
