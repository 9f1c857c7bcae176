"""Checks of the cells of a row: the type that the column promises, or an error that names the column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.server.interface import DTYPES, Column, Row
from headwise.text.tokenizer import check_text


def check_names(row: Row, columns: Sequence[Column]) -> None:
    """Raise ArgumentError if a row lacks a required column or has an unknown one."""
    names = [column.name for column in columns]
    if unknown := [name for name in row if name not in names]:
        raise ArgumentError(f"{unknown[0]!r:.60}: unknown column. Expected: {', '.join(names)}")
    if missing := [column.name for column in columns if not column.optional and row.get(column.name) is None]:
        raise ArgumentError(f"{missing[0]}: this column is missing. Expected: {', '.join(names)}")


def text_of(row: Row, name: str) -> str:
    """A cell as non-empty text. Raises DtypeError, ArgumentError."""
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


def array_of(row: Row, column: Column) -> np.ndarray:
    """A cell as an array of numbers in the column's dtype. Raises DtypeError, ShapeError, ArgumentError."""
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


def texts_of(row: Row, name: str) -> list[str]:
    """A cell as a list of non-empty texts. Raises DtypeError, ArgumentError."""
    found = np.asarray(row[name], dtype=object)
    if found.ndim != 1:
        raise ShapeError(f"{name}: expected [-1], -1 = any size. Received: {list(found.shape)}")
    return [text_of({name: each}, name) for each in found.tolist()]


def _shape(column: Column) -> str:
    said = ", -1 = any size but 0" if -1 in column.shape else ""
    return f"{list(column.shape)}{said}"
