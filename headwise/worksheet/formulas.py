"""Reads and computes the formulas of worksheets: spreadsheet formulas with names of matrices instead of addresses.

    MMULT(X,W_Q_1)+b_Q_1                 a whole matrix at once
    EXP(Masked_1[i,j]-Max_1[i,1])        cell by cell: row i, column j, counted from 1; [i,:] is a row, [:,j] a column

In a workbook, `Max_1[2,1]` becomes the address of that cell. Here the same text is computed in float64, so the numbers
and formulas of a worksheet cannot differ. A masked score is the text "−∞", which MAX and SUM ignore, as they do in a
spreadsheet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.errors import WorksheetError

Array = NDArray[np.float64]
FORBIDDEN = "−∞"

_REFERENCE = re.compile(r"\b([A-Za-z_]\w*)\[([^\],]+),([^\]]+)\]")
_INDEX = re.compile(r"\b([ij])\b(?!\()")
_OPERATOR = re.compile(r"(?<=[\w\])])([-+*/])(?=[\w(])")
_BRACKETS = re.compile(r"(\[[^\]]*\])")
_STRING = re.compile(r'("[^"]*")')


@dataclass(frozen=True)
class Formula:
    """The formula of a matrix: one text for all its cells, or one text per column."""

    texts: tuple[str, ...]
    whole: bool = False  # the text computes the whole matrix, not one cell

    @property
    def is_uniform(self) -> bool:
        return len(set(self.texts)) == 1

    @property
    def summary(self) -> str:
        """The formula for people: its text, or if texts differ by column, the longest text."""
        return readable(max(self.texts, key=len))

    def of_cell(self, row: int, col: int) -> str:
        """Return the text for one cell (row and column from 1), with numbers in place of i and j."""
        text = self.texts[0] if len(self.texts) == 1 else self.texts[col - 1]
        if self.whole:
            return text
        return _outside_strings(text, lambda part: _INDEX.sub(lambda found: str({"i": row, "j": col}[found[1]]), part))

    def values(self, shape: tuple[int, int], names: Mapping[str, Array]) -> Array:
        """Compute the numbers, an array of this shape. `names`: name -> array, of all matrices made before."""
        known = _Names(names)
        with np.errstate(all="ignore"):
            if self.whole:
                found = np.asarray(eval(_compile(self.texts[0]), {"__builtins__": {}}, known), dtype=np.float64)
                return _checked(np.broadcast_to(found, shape).copy(), self.texts[0])
            codes = [_compile(text) for text in self.texts] * (1 if len(self.texts) > 1 else shape[1])
            out = np.empty(shape)
            for i in range(shape[0]):
                for j in range(shape[1]):
                    known.index = {"i": i + 1, "j": j + 1}
                    out[i, j] = eval(codes[j], {"__builtins__": {}}, known)
        return _checked(out, self.texts[0])

    def addressed(self, row: int, col: int, address: Callable[[str, int | None, int | None], str]) -> str:
        """Return the text for one cell, with each reference to a matrix replaced by `address(name, row, col)`.

        A row or column of None means all rows or columns.
        """
        text = self.of_cell(row, col)

        def place(found: re.Match[str]) -> str:
            name, *indices = found.groups()
            return address(name, *(None if index == ":" else _number(index) for index in indices))

        return _REFERENCE.sub(place, text)


def readable(text: str) -> str:
    """Return the text of a formula, with spaces where lines may be broken."""
    parts = _BRACKETS.split(text)
    spaced = (part if part.startswith("[") else part.replace(",", ", ") for part in parts)
    return _OPERATOR.sub(r" \1 ", "".join(spaced))


def _number(index: str) -> int:
    """Return the number that an index stands for: 3 for "3", 5 for "3+2"."""
    return sum(int(part) for part in index.split("+"))


def _outside_strings(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if part.startswith('"') else change(part) for part in _STRING.split(text))


def _compile(text: str) -> CodeType:
    """Compile a formula as Python code. All formulas come from this package, with names of this package."""

    def translate(part: str) -> str:
        part = part.replace("^", "**")
        part = re.sub(r"(?<![<>=])=", "==", part)
        return re.sub(r"\b([A-Za-z_]\w*)\[", r"\1_CELLS[", part)

    return compile(_outside_strings(text, translate), text, "eval")


def _checked(values: Array, text: str) -> Array:
    if np.isnan(values).any() or np.isposinf(values).any():
        raise WorksheetError(f"a spreadsheet cannot compute {text} of these numbers: it overflows. Use smaller numbers")
    return values


class _Names(dict[str, Any]):
    """The values of names in a formula: i and j, functions, matrices, and `X_CELLS` for the cells of X."""

    def __init__(self, matrices: Mapping[str, Array]) -> None:
        super().__init__()
        self.matrices = matrices
        self.index: dict[str, int] = {}

    def __missing__(self, name: str) -> Any:
        if name in self.index:
            return self.index[name]
        if name in FUNCTIONS:
            return FUNCTIONS[name]
        if name.endswith("_CELLS"):
            found: Any = _Cells(self.matrices[name.removesuffix("_CELLS")])
        else:
            matrix = self.matrices[name]
            found = matrix[0, 0] if matrix.size == 1 else matrix
        self[name] = found
        return found


class _Cells:
    """The cells of a matrix, with indices that count from 1."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __getitem__(self, index: tuple[int | slice, int | slice]) -> Any:
        row, col = (at if isinstance(at, slice) else at - 1 for at in index)
        if any(isinstance(at, int) and at < 0 for at in (row, col)):
            raise IndexError(index)
        return self.values[row, col]


def _ignore_text(fn: Callable[[Array], Any]) -> Callable[..., Any]:
    """Make a spreadsheet function of all numbers in some cells from `fn`; it ignores text, such as "−∞"."""

    def call(*parts: Any) -> Any:
        flat = np.concatenate([np.ravel(np.asarray(part, dtype=np.float64)) for part in parts])
        return fn(flat[flat != -np.inf])

    return call


def _row(matrix: Array, row: float, col: int) -> Any:
    """Compute the function INDEX: return one cell of a matrix, or with column 0 a whole row."""
    at = int(row) - 1
    if not 0 <= at < matrix.shape[0]:
        raise WorksheetError(f"INDEX: expected a row from 0 to {matrix.shape[0]}. Received: {int(row)}")
    return matrix[at] if col == 0 else matrix[at, col - 1]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ABS": np.abs,
    "AVERAGE": _ignore_text(np.mean),
    "COS": np.cos,
    "DEVSQ": _ignore_text(lambda x: np.sum((x - x.mean()) ** 2)),
    "EXP": lambda x: np.exp(np.asarray(x, dtype=np.float64)),
    "IF": lambda condition, yes, no: _text(yes) if condition else _text(no),
    "INDEX": _row,
    "INT": np.floor,
    "ISNUMBER": lambda x: x != -np.inf,
    "LN": np.log,
    "MAX": _ignore_text(lambda x: x.max() if x.size else 0.0),
    "MIN": _ignore_text(lambda x: x.min() if x.size else 0.0),
    "MMULT": lambda a, b: np.atleast_2d(a) @ np.atleast_2d(b),
    "NORMSDIST": lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0)),  # Φ(x)
    "PI": lambda: math.pi,
    "SIN": np.sin,
    "SQRT": np.sqrt,
    "SUM": _ignore_text(np.sum),
    "SUMPRODUCT": lambda *parts: np.sum(np.prod([np.ravel(part) for part in parts], axis=0)),
    "SUMSQ": _ignore_text(lambda x: np.sum(x**2)),
    "TANH": np.tanh,
    "TRANSPOSE": np.transpose,
}


def _text(value: Any) -> Any:
    return -np.inf if isinstance(value, str) else value
