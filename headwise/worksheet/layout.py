"""Arranges the matrices of a step on its sheet, and computes the addresses of their cells."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headwise.worksheet.description import Matrix, Step, Steps

FIRST_ROW = 6  # of matrices; above are the step's title, sentence, formula and links
LONGEST_NAME = 31
_NOT_IN_NAMES = re.compile(r"[\[\]:*?/\\]")


@dataclass(frozen=True)
class Place:
    """The cells of a matrix on a sheet: its name is at (row, col), from 1; formula, labels and numbers are below."""

    matrix: Matrix
    sheet: str
    row: int
    col: int  # the column of the row labels; the numbers begin in the next column

    @property
    def labels_row(self) -> int:
        return self.row + 2

    @property
    def origin(self) -> tuple[int, int]:
        """(row, column) of its formula."""
        return (self.row, self.col + 2) if self.matrix.is_number else (self.row + 1, self.col)

    def at(self, i: int, j: int) -> tuple[int, int]:
        """Return (row, column) of the number at (i, j) of the matrix, from 1; a single number is next to its name."""
        return (self.row if self.matrix.is_number else self.row + 2 + i), self.col + j

    def address(self, i: int | None, j: int | None) -> str:
        """Return the address of a cell, such as "C9"; None for i or j means all rows or columns: a range."""
        from xlsxwriter.utility import xl_range

        return xl_range(*self._corners(i, j))

    @property
    def absolute(self) -> str:
        """The address of the whole matrix, such as "'7 Scores'!$B$9:$F$13"."""
        from xlsxwriter.utility import xl_range_abs

        return f"'{self.sheet}'!{xl_range_abs(*self._corners(None, None))}"

    def _corners(self, i: int | None, j: int | None) -> tuple[int, int, int, int]:
        """Return the first row and column and the last row and column of a range, from 0 as in XlsxWriter."""
        rows, cols = self.matrix.shape
        top, left = self.at(1 if i is None else i, 1 if j is None else j)
        bottom, right = self.at(rows if i is None else i, cols if j is None else j)
        return top - 1, left - 1, bottom - 1, right - 1


@dataclass(frozen=True)
class Sheet:
    """The sheet of one step: its name, the step, and the place of each matrix on it."""

    name: str
    step: Step
    places: tuple[Place, ...]

    @property
    def width(self) -> int:
        """The number of columns that are used."""
        return max(place.at(*place.matrix.shape)[1] for place in self.places)

    @property
    def height(self) -> int:
        """The number of rows that are used."""
        return max(place.at(*place.matrix.shape)[0] for place in self.places)


def lay_out(sheet: Steps) -> list[Sheet]:
    """Make a sheet for each step. Matrices in one row of the grid are side by side, in columns that all rows share."""
    found = []
    for number, step in enumerate(sheet.steps, start=1):
        name = _sheet_name(number, step.heading)
        widths = [0] * max(len(row) for row in step.grid)
        for row in step.grid:
            for at, matrix in enumerate(row):
                # The last matrix of a row needs no common width: nothing is to the right of it.
                if at < len(row) - 1:
                    widths[at] = max(widths[at], len(matrix.cols))
        places, top = [], FIRST_ROW
        for row in step.grid:
            left = 1
            for at, matrix in enumerate(row):
                places.append(Place(matrix, name, top, left))
                left += max(widths[at], 2 if matrix.is_number else 1) + 2  # a single number has its formula after it
            top += 2 if all(matrix.is_number for matrix in row) else 4 + max(len(matrix.rows) for matrix in row)
        found.append(Sheet(name, step, tuple(places)))
    return found


def _sheet_name(number: int, heading: str) -> str:
    """Return the name of a sheet, such as "7 Scores": it is unique, and formulas can quote it."""
    plain = _NOT_IN_NAMES.sub(
        "", heading.replace(": ", " ").replace("'", "’")
    )  # this apostrophe need not be escaped in formulas
    return f"{number} {plain}"[:LONGEST_NAME].rstrip()
