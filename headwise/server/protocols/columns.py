"""Rows of named columns <-> arrays that hold a column of every row: what each protocol of tensors needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.errors import RequestRefused
from headwise.server.interface import DTYPES, Column, Description, Row
from headwise.server.protocols.errors import piece

MOST_ROWS = 8192  # of one request: while it is read, all others wait


def check_count(rows: int) -> None:
    """Raise RequestRefused unless a request has one row or more, and not too many."""
    if rows < 1:
        raise RequestRefused("bad_input", "expected one row or more. Received: none")
    if rows > MOST_ROWS:
        raise RequestRefused("too_large", f"expected at most {MOST_ROWS} rows in one request. Received: {rows}")


def column_of(columns: Sequence[Column], name: str, kind: str = "input") -> Column:
    """The column of this name. Raises RequestRefused with those that there are."""
    for column in columns:
        if column.name == name:
            return column
    there = ", ".join(column.name for column in columns)
    raise RequestRefused("bad_input", f"{kind} {piece(name)}: this model has no such {kind}, only {there}")


def check_names(columns: Sequence[Column], names: Sequence[str]) -> None:
    """Raise RequestRefused unless each input is there once, and each that must be."""
    for name in names:
        column_of(columns, name)
    for column in columns:
        if names.count(column.name) > 1:
            raise RequestRefused("bad_input", f"input {column.name}: it is there more than once")
        if column.name not in names and not column.optional:
            raise RequestRefused("bad_input", f"input {column.name}: it is missing")


def check_shape(column: Column, shape: Sequence[int]) -> None:
    """Raise RequestRefused unless an array of this shape holds one or more rows of the column."""
    expected = (-1, *column.shape)
    fits = len(shape) == len(expected) and all(
        size > 0 and want in (-1, size) for size, want in zip(shape, expected, strict=True)
    )
    if not fits:
        why = ": a request has one row or more, and none of its sizes is 0" if 0 in shape else ""
        raise RequestRefused(
            "bad_input",
            f"input {column.name}: expected the shape {list(expected)}, where -1 is any size. "
            f"Received: {piece(list(shape))}{why}",
        )
    check_count(shape[0])


def check_size(column: Column, shape: Sequence[int], size: int) -> None:
    """Raise RequestRefused unless the shape has so many elements."""
    if math.prod(shape) != size:
        raise RequestRefused(
            "bad_input",
            f"input {column.name}: the shape {piece(list(shape))} has {math.prod(shape)} elements, and the data {size}",
        )


def rows_of(columns: Sequence[Column], arrays: Mapping[str, np.ndarray]) -> list[Row]:
    """The rows of a request.

    Args:
        columns: the inputs of a model.
        arrays: each [N, *shape] of its column's dtype; BYTES are objects, each bytes or str.

    Raises:
        RequestRefused: "bad_input", names, numbers of rows or text that do not fit.
    """
    check_names(columns, list(arrays))
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items()) or "none"
        raise RequestRefused("bad_input", f"expected as many rows in each input, one or more. Received: {listed}")
    cells = {column.name: _cells(column, arrays[column.name]) for column in columns if column.name in arrays}
    return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]


def _cells(column: Column, array: np.ndarray) -> list[Any]:
    if column.datatype == "BYTES":
        array = _elements(column, array)
    return list(array.tolist() if not column.shape else array)


def _elements(column: Column, array: np.ndarray) -> np.ndarray:
    """Text as str and other BYTES as bytes, however they came."""
    elements = np.empty(array.size, np.object_)
    number = 0
    try:
        for number, value in enumerate(array.ravel().tolist()):
            elements[number] = _binary(value) if column.binary else _text(value)
    except UnicodeError as error:
        row = number // (array.size // len(array))
        raise RequestRefused(
            "bad_input", f"input {column.name}, row {row}, counted from 0: it is not UTF-8 text"
        ) from error
    return elements.reshape(array.shape)


def _text(value: bytes | str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    value.encode()  # half of a surrogate pair is no text
    return value


def _binary(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def array_of(column: Column, values: Sequence[Any], name: str) -> np.ndarray:
    """Plain values, as JSON has them, as an array of a column's dtype.

    Args:
        values: flat.
        name: what to call them in an error.

    Raises:
        RequestRefused: "bad_input", of another kind, or too large for the dtype.
    """
    kinds: dict[str, tuple[type, ...]] = {"BYTES": (str, bytes), "BOOL": (bool,), "INT32": (int,), "INT64": (int,)}
    wanted = kinds.get(column.datatype, (int, float))
    if not set(map(type, values)) <= set(wanted):
        wrong = next(value for value in values if type(value) not in wanted)
        said = {"BYTES": "text", "BOOL": "true or false", "INT32": "whole numbers", "INT64": "whole numbers"}
        raise RequestRefused(
            "bad_input", f"{name}: expected {said.get(column.datatype, 'numbers')}. Received: {_kind(wrong)}"
        )
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
    return RequestRefused("bad_input", f"{name}: a number is too large for {column.datatype}")


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "true or false", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number with a fraction" if isinstance(value, float) else "a number")


def flat(values: Any, shape: Sequence[int]) -> list[Any] | None:
    """The elements of nested lists of this shape, in order; None where they have another."""
    level = [values]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in level):
            return None
        level = [element for part in level for element in part]
    return None if any(isinstance(element, list) for element in level) else level


def arrays_of(description: Description, rows: Sequence[Row], names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The answers to the rows of a request, each output [N, *shape].

    A tensor is a box: where rows have outputs of different lengths, the shorter ones end with 0 or empty text. Where a
    row lacks an output it is NaN, 0 or empty.

    Args:
        names: of the outputs that are wanted, in their order; none = all that at least one row has.

    Raises:
        RequestRefused: "bad_input", an unknown name.
    """
    wanted = [column_of(description.outputs, name, "output") for name in names]
    if not names:
        wanted = [c for c in description.outputs if not c.optional or any(row.get(c.name) is not None for row in rows)]
    return {column.name: _box(column, [cell_of(column, row) for row in rows]) for column in wanted}


def cell_of(column: Column, row: Row) -> Any:
    """What a row answers in a column; None where the column is optional and the row lacks it."""
    if column.name not in row and not column.optional:  # another model took its place after it was found
        raise RequestRefused("unavailable", "the model was replaced while it answered: try again", retry_after=1)
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
