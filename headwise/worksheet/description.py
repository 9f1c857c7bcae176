"""One attention computation, step by step: what every writer of this package writes down.

A `Worksheet` is a list of `Step`s, a step some matrices, and a matrix its numbers with the formula they come from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from headwise.worksheet.formulas import Formula

if TYPE_CHECKING:
    from rich.console import Console

# input, parameter, option, positions and mask are numbers that may be changed; the others follow from them by formulas.
Kind = Literal["input", "parameter", "option", "positions", "mask", "result", "weights", "output"]
CONSTANTS: tuple[Kind, ...] = ("input", "parameter", "option", "positions", "mask")

LONGEST_LABEL, LONGEST_TITLE = 24, 100
SCIENTIFIC = -1  # digits of a number that is shown as 1e-06

LETTERS = {
    "S": "tokens",
    "Q": "queries",
    "K": "keys",
    "M": "width of the model",
    "Mₖ": "width of what is read",
    "Mᵥ": "width of the values that are read",
    "H": "heads",
    "H·E": "the values of all heads side by side",
    "D": "width of a head's queries and keys",
    "E": "width of a head's values",
    "R": "width of the keys' and values' latent",
    "R'": "width of the queries' latent",
    "R+T": "what a cache holds of a token",
    "T": "dimensions that are turned",
    "P": "pairs of dimensions that turn together",
    "N": "latents",
    "F": "width inside of the feed-forward network",
    "W": "distances, or buckets of them",
    "A": "coordinates of a position",
}


@dataclass(frozen=True)
class Axis:
    """One side of a matrix: its dimension letter, and what each row or column is called.

    A side of one, such as the sums of rows, has no letter.
    """

    letter: str
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def lettered(self, letter: str) -> Axis:
        """The same rows or columns in another part: the tokens as queries, the tokens as keys."""
        return replace(self, letter=letter)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(map(printable, self.labels)))


def printable(text: str, longest: int = LONGEST_LABEL) -> str:
    """A text without the characters that no cell and no terminal takes, and not longer than there is room."""
    text = "".join("\N{REPLACEMENT CHARACTER}" if _is_control(letter) else letter for letter in text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cs") or letter in "\ufffe\uffff"


ONE = Axis("", ("",))


def numbered(letter: str, count: int, prefix: str | None = None) -> Axis:
    """`count` rows or columns that have no names: d1, d2 …"""
    prefix = letter[0].lower() if prefix is None else prefix
    return Axis(letter, tuple(f"{prefix}{i}" for i in range(1, count + 1)))


@dataclass(frozen=True, eq=False)
class Matrix:
    """Numbers under a name that formulas use. One row and column is a plain number."""

    name: str
    rows: Axis
    cols: Axis
    values: NDArray[np.float64]  # -inf where a mask forbids
    formula: Formula | None = None  # None = numbers that may be changed
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
        """`[S × M] = [5 × 4]`; a side of one is a 1."""
        rows, cols = self.shape
        return f"[{self.rows.letter or 1} × {self.cols.letter or 1}] = [{rows} × {cols}]"

    @property
    def summarised(self) -> str:
        """Which column the summary of a formula is about, where the columns differ."""
        texts = () if self.formula is None else self.formula.texts
        return self.cols.labels[texts.index(max(texts, key=len))] if len(texts) > 1 else ""

    def shown(self, i: int, j: int) -> str:
        """The number of row i and column j (from 0) as a person reads it."""
        value = float(self.values[i, j])
        if np.isneginf(value):
            return "−∞"
        if self.digits == SCIENTIFIC:
            return f"{value:.0e}"
        text = f"{value:.{self.digits}f}"
        return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


@dataclass(frozen=True, eq=False)
class Step:
    """One step: what it does, in words and in symbols, and the matrices that it reads for the first time or makes.

    `grid` says how the matrices stand on a page: rows of them.
    """

    title: str
    sentence: str
    symbols: str
    grid: tuple[tuple[Matrix, ...], ...]
    part: str = ""  # of a module of several parts: "Read 1"

    @property
    def heading(self) -> str:
        return f"{self.part}: {self.title}" if self.part else self.title

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return tuple(matrix for row in self.grid for matrix in row)


@dataclass(frozen=True, eq=False)
class Worksheet:
    """A computation that can be followed from the inputs to the output.

    >>> sheet = headwise.worksheet.make(module, x, tokens=["I", "drink"])
    >>> for step in sheet: print(step.title)
    >>> sheet["A_1"].values                                 # the weights of head 1
    >>> sheet.write("attention.xlsx")                       # or .md, .html
    >>> sheet.show()                                        # in the terminal
    """

    title: str
    about: str
    steps: tuple[Step, ...]
    output: Matrix
    notes: tuple[str, ...] = ()
    dimensions: tuple[tuple[str, str], ...] = field(default=())  # letter, its size: "5", or "4, 8"

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, name: str) -> Matrix:
        return self.matrices[name]

    @property
    def matrices(self) -> dict[str, Matrix]:
        """Every matrix by its name."""
        return {matrix.name: matrix for step in self.steps for matrix in step.matrices}

    def write(self, path: str | Path) -> None:
        """Write it down: as a workbook (.xlsx), as Markdown (.md) or as a page (.html).

        Raises:
            ArgumentError: a name that ends otherwise.
            WorksheetError: a workbook where openpyxl is not installed.
            FileError: the file cannot be written.
        """
        from headwise.worksheet.write import write_to

        write_to(self, Path(path))

    def show(self, console: Console | None = None) -> None:
        """Print it; default: to standard output."""
        from headwise.worksheet.terminal import print_worksheet

        print_worksheet(self, console)
