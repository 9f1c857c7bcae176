"""The columns of the rows that a served task takes and returns, and checks of cells (one value of one row each)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headwise.errors import ArgumentError, DtypeError, ShapeError, brief
from headwise.text.tokenizer import check_text

# A row maps a column name to: str for text, bytes for other BYTES, a Python number or bool if the column's
# shape is (), otherwise a NumPy array of the column's dtype.
Row = dict[str, Any]
Datatype = Literal["BYTES", "BOOL", "INT32", "INT64", "FP32", "FP64"]  # names of the Open Inference Protocol

DTYPES: dict[Datatype, Any] = {  # the NumPy dtypes
    "BYTES": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
    "FP64": np.float64,
}


@dataclass(frozen=True)
class Column:
    """One column of the rows that a model takes or returns.

    Args:
        name: the name of the tensor in a request.
        datatype: a datatype of the Open Inference Protocol. BYTES is UTF-8 text unless `binary`.
        shape: the shape in one row: () = a single value; -1 = any length. A request with N rows has [N, *shape].
        says: a short description for clients.
        optional: whether a row may lack this column.
        binary: BYTES that are not text, such as an encoded image.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...] = ()
    says: str = ""
    optional: bool = False
    binary: bool = False


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of the rows that a task takes and returns.

    Args:
        inputs, outputs: the columns of a row of a request, and of its answer.
        streams: whether the text of an answer can be given piece by piece.
        example: a valid row, for the OpenAPI page and for warm-up.
    """

    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]
    streams: bool = False
    example: Row | None = None


def check_names(row: Row, columns: Sequence[Column]) -> None:
    """Raise ArgumentError if a row lacks a required column or has an unknown one."""
    names = [column.name for column in columns]
    if unknown := [name for name in row if name not in names]:
        raise ArgumentError(f"{brief(unknown[0], 60)}: unknown column. Expected: {', '.join(names)}")
    if missing := [column.name for column in columns if not column.optional and row.get(column.name) is None]:
        raise ArgumentError(f"{missing[0]}: this column is missing. Expected: {', '.join(names)}")


def take_text(row: Row, name: str) -> str:
    """Return the cell of a row in the column `name`, checked to be non-empty text. Raises DtypeError, ArgumentError."""
    value = row[name]
    if not isinstance(value, str):
        raise DtypeError(f"{name}: expected a text. Received: {type(value).__name__}")
    try:
        check_text(value)
    except ArgumentError as cause:
        raise ArgumentError(f"{name}: expected valid Unicode. Received: a lone surrogate") from cause
    if not value.strip():
        raise ArgumentError(f"{name}: expected a text. Received: an empty text")
    return value


def take_array(row: Row, column: Column) -> np.ndarray:
    """Convert the cell of a row in this column to an array of numbers in the column's dtype.

    Raises DtypeError, ShapeError, ArgumentError.
    """
    name, dtype = column.name, DTYPES[column.datatype]
    try:
        found = np.asarray(row[name])
    except ValueError as cause:  # lists of different lengths
        raise ShapeError(f"{name}: expected {_shape(column)}. Received: lists of different lengths") from cause
    kinds = {"b": "b", "i": "iu", "f": "fiu"}[np.dtype(dtype).kind]
    if found.dtype.kind not in kinds:
        raise DtypeError(f"{name}: expected {column.datatype}. Received: {found.dtype}")
    fits = found.ndim == len(column.shape) and all(
        size > 0 and want in (-1, size) for size, want in zip(found.shape, column.shape, strict=True)
    )
    if not fits:
        raise ShapeError(f"{name}: expected {_shape(column)}. Received: {list(found.shape)}")
    cast = found.astype(dtype, copy=False)
    if found.dtype.kind in "iu" and dtype in (np.int32, np.int64) and not np.array_equal(cast, found):
        raise ArgumentError(f"{name}: a number is out of range for {column.datatype}")
    return cast


def take_cell(row: Row, column: Column) -> Any:
    """Return the checked cell of a row in a column of any kind. Raises DtypeError, ShapeError, ArgumentError."""
    if column.binary:
        if not isinstance(row[column.name], bytes):
            raise DtypeError(f"{column.name}: expected bytes. Received: {type(row[column.name]).__name__}")
        return row[column.name]
    if column.datatype == "BYTES":
        return take_texts(row, column.name) if column.shape else take_text(row, column.name)
    cell = take_array(row, column)
    return cell if column.shape else cell.item()


def take_texts(row: Row, name: str) -> list[str]:
    """Return the cell of a row in the column `name`, checked to be a list of non-empty texts.

    Raises DtypeError, ArgumentError.
    """
    found = np.asarray(row[name], dtype=object)
    if found.ndim != 1:
        raise ShapeError(f"{name}: expected [-1], -1 = any size. Received: {list(found.shape)}")
    return [take_text({name: each}, name) for each in found.tolist()]


def _shape(column: Column) -> str:
    said = ", -1 = any size but 0" if -1 in column.shape else ""
    return f"{list(column.shape)}{said}"
