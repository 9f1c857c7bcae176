"""Defines the data of a worksheet (an attention computation, step by step), which all writers of this package read.

A worksheet (`sheet.py`) is a list of `Step`s. A step holds matrices. A matrix holds numbers and their formula.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwise.errors import shortened
from headwise.worksheet.formulas import Formula

T = TypeVar("T")

# The kinds of matrices. The reader may change the numbers of the first five; formulas compute the others from them.
Kind = Literal["input", "parameter", "option", "positions", "mask", "result", "weights", "output"]
CONSTANTS: tuple[Kind, ...] = ("input", "parameter", "option", "positions", "mask")

LONGEST_LABEL, LONGEST_TITLE = 24, 100
SCIENTIFIC = -1  # as `digits`: the number is shown as 1e-06

LETTERS = {
    "S": "tokens",
    "Q": "queries",
    "K": "keys",
    "M": "width of the model",
    "Mₖ": "width of the key input",
    "Mᵥ": "width of the value input",
    "H": "heads",
    "H·E": "the concatenated values of all heads",
    "D": "width of a head's queries and keys",
    "E": "width of a head's values",
    "R": "width of the latent of keys and values",
    "R'": "width of the latent of queries",
    "R+T": "numbers that a cache holds per token",
    "T": "dimensions that are rotated",
    "P": "pairs of dimensions that are rotated together",
    "N": "latents",
    "F": "inner width of the feed-forward network",
    "W": "distances, or buckets of distances",
    "A": "coordinates of a position",
}


@dataclass(frozen=True)
class Axis:
    """One side of a matrix: its dimension letter (a key of `LETTERS`), and the names of its rows or columns.

    A side of length 1, such as that of row sums, has no letter.
    """

    letter: str
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def lettered(self, letter: str) -> Axis:
        """Return the same rows or columns with another letter, such as S (tokens) as Q (queries) or as K (keys)."""
        return replace(self, letter=letter)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(map(printable, self.labels)))


def printable(text: str, longest: int = LONGEST_LABEL) -> str:
    """Return a text shortened to `longest`, without characters that cells and terminals do not accept."""
    text = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(each) in ("Cc", "Cs") or each in "\ufffe\uffff" else each
        for each in text
    )
    return shortened(text, longest)


def in_lines(things: Iterable[T], width_of: Callable[[T], int], room: int) -> list[list[T]]:
    """Arrange things in lines, each with as many things side by side as fit into `room`; return the lines."""
    lines: list[list[T]] = [[]]
    used = 0
    for each in things:
        wide = width_of(each)
        if lines[-1] and used + wide > room:
            lines.append([])
            used = 0
        lines[-1].append(each)
        used += wide
    return lines


ONE = Axis("", ("",))


def numbered(letter: str, count: int, prefix: str | None = None) -> Axis:
    """Make an axis of `count` rows or columns with numbered names: d1, d2 …"""
    prefix = letter[0].lower() if prefix is None else prefix
    return Axis(letter, tuple(f"{prefix}{i}" for i in range(1, count + 1)))


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix of numbers, with a name that formulas use. With one row and one column it is a single number."""

    name: str
    rows: Axis
    cols: Axis
    values: NDArray[np.float64]  # -inf where a score is masked
    formula: Formula | None = None  # None = the numbers may be changed
    kind: Kind = "result"
    digits: int = 3

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.cols)

    @property
    def is_number(self) -> bool:
        return self.rows is ONE and self.cols is ONE

    @property
    def size(self) -> str:
        """The size as text, such as "[S × M] = [5 × 4]"; a side of length 1 is written as 1."""
        rows, cols = self.shape
        return f"[{self.rows.letter or 1} × {self.cols.letter or 1}] = [{rows} × {cols}]"

    @property
    def corner(self) -> str:
        """The letters of both sides as text, such as "Q ╲ K"."""
        return f"{self.rows.letter} ╲ {self.cols.letter}".strip(" ╲")

    @property
    def origin(self) -> str:
        """The formula for people: "= MMULT(X, W_Q_1)"; of one column, "d2: = …", if columns differ; "" if none."""
        if self.formula is None:
            return ""
        texts = self.formula.texts
        column = "" if self.formula.is_uniform else f"{self.cols.labels[texts.index(max(texts, key=len))]}: "
        return f"{column}= {self.formula.summary}"

    def shown(self, i: int, j: int) -> str:
        """Return the number in row i and column j (from 0), formatted for people."""
        value = float(self.values[i, j])
        if np.isneginf(value):
            return "−∞"
        if self.digits == SCIENTIFIC:
            return f"{value:.0e}"
        text = f"{value:.{self.digits}f}"
        return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


@dataclass(frozen=True, eq=False)
class Step:
    """One step: a sentence, a formula in symbols, and the matrices that it makes or uses for the first time.

    `grid` arranges the matrices on a page, in rows.
    """

    title: str
    sentence: str
    symbols: str
    grid: tuple[tuple[Matrix, ...], ...]
    part: str = ""  # the part of the module, if it has several parts: "Read 1"

    @property
    def heading(self) -> str:
        return f"{self.part}: {self.title}" if self.part else self.title

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return tuple(matrix for row in self.grid for matrix in row)


@dataclass(frozen=True, eq=False)
class Steps:
    """A computation from the inputs to the output, as a list of steps. The writers read it."""

    title: str
    about: str
    steps: tuple[Step, ...]
    output: Matrix
    notes: tuple[str, ...] = ()
    # (letter of a dimension, its size "5" or its sizes "4, 8")
    dimensions: tuple[tuple[str, str], ...] = field(default=())

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, name: str) -> Matrix:
        return self.matrices[name]

    @property
    def matrices(self) -> dict[str, Matrix]:
        """All matrices, by name."""
        return {matrix.name: matrix for step in self.steps for matrix in step.matrices}
