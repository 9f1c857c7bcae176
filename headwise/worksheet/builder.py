"""Builds a worksheet (the steps of a computation): names each matrix, checks its size and computes its formula."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from headwise.errors import WorksheetError
from headwise.language import Sentence, said
from headwise.worksheet.description import LETTERS, ONE, Axis, Kind, Matrix, Step, in_lines
from headwise.worksheet.formulas import Array, Formula
from headwise.worksheet.sheet import Worksheet

LONGEST = 16  # the maximum number of rows or columns, which a person can still follow
LONGEST_OF = {"F": 64, "W": 33}  # larger maxima: feed-forward networks are 4 M wide, and no one reads whole tables
MOST_HEADS = 8
MOST_STEPS = 120
WIDTH = 17  # the most columns that matrices side by side have together; the next matrix goes below

FITS = Sentence(
    "A worksheet shows up to {longest} tokens, matrices up to {longest} wide (in a feed-forward network {longest_of}) "
    "and {most_heads} heads"
).format(longest=LONGEST, longest_of=LONGEST_OF["F"], most_heads=MOST_HEADS)


class Builder:
    """Collects the steps of a worksheet. `given`, `cells` and `whole` make matrices; then `step` shows them.

    `longest`: a dimension letter -> the maximum number of rows or columns, where it is not `LONGEST`.
    """

    def __init__(self, longest: Mapping[str, int] = LONGEST_OF) -> None:
        self._longest = longest
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.matrices: dict[str, Matrix] = {}
        self._values: dict[str, Array] = {}
        self._part, self._prefix = "", ""

    @contextlib.contextmanager
    def part(self, title: str, prefix: str) -> Iterator[None]:
        """A context whose steps belong to the part `title` of the module; names of its matrices begin with `prefix`."""
        outer = self._part, self._prefix
        self._part = f"{outer[0]}, {said(title)}" if outer[0] else said(title)
        self._prefix = f"{outer[1]}{prefix}_"
        yield
        self._part, self._prefix = outer

    def local(self, matrix: Matrix) -> str:
        """Return the name of the matrix without the prefix of this part, to form another name from it."""
        return matrix.name.removeprefix(self._prefix)

    # --- Matrices ------------------------------------------------------------------------------------------------

    def given(
        self, kind: Kind, name: str, values: Tensor | ArrayLike, rows: Axis = ONE, cols: Axis = ONE, *, digits: int = 3
    ) -> Matrix:
        """Make a matrix of numbers that the reader may change."""
        if isinstance(values, Tensor):
            values = values.detach().to("cpu", torch.float64).numpy()
        self._check_size(name, rows, cols)
        numbers = np.array(values, dtype=np.float64).reshape(len(rows), len(cols))
        if not np.isfinite(numbers).all():
            raise WorksheetError(
                f"{self._prefix}{name}: every number must be finite to fit in a cell. Received: NaN or infinity"
            )
        return self._add(Matrix(self._prefix + name, rows, cols, numbers, None, kind, digits))

    def cells(self, name: str, rows: Axis, cols: Axis, *texts: str, kind: Kind = "result", digits: int = 3) -> Matrix:
        """Make a matrix with one formula per cell: a text for all columns, or one text per column."""
        return self._computed(name, rows, cols, Formula(texts), kind, digits)

    def whole(self, name: str, rows: Axis, cols: Axis, text: str, *, kind: Kind = "result") -> Matrix:
        """Make a matrix with one array formula for all its cells, such as a product of matrices."""
        return self._computed(name, rows, cols, Formula((text,), whole=True), kind, 3)

    def option(self, name: str, value: float | str, *, digits: int = 4) -> Matrix:
        """Make a single number that the reader may change: a value, or a formula without names, such as 1/SQRT(4)."""
        if isinstance(value, str):
            return self._computed(name, ONE, ONE, Formula((value,)), "option", digits)
        return self.given("option", name, value, digits=digits)

    # --- Steps ---------------------------------------------------------------------------------------------------

    def step(self, title: str, sentence: str, symbols: str, *grid: Sequence[Matrix]) -> None:
        """Add a step that shows the matrices just made. `grid` arranges them on a page, in rows."""
        rows = tuple(tuple(row) for row in grid if row)
        self.steps.append(Step(said(title), said(sentence), said(symbols), rows, self._part))
        if len(self.steps) > MOST_STEPS:
            raise WorksheetError(f"the module needs more than {MOST_STEPS} steps. Use one of its layers. {FITS}")

    def finish(self, title: str, about: str, output: Matrix) -> Worksheet:
        """Return the worksheet of all steps. Its result is the matrix `output`."""
        shown = {matrix.name for step in self.steps for matrix in step.matrices}
        assert shown == set(self.matrices), f"made, but on no page: {set(self.matrices) - shown}"
        sizes: dict[str, list[int]] = {}
        for matrix in self.matrices.values():
            for axis in (matrix.rows, matrix.cols):
                if axis.letter and len(axis) not in sizes.setdefault(axis.letter, []):
                    sizes[axis.letter].append(len(axis))
        assert sizes.keys() <= LETTERS.keys(), f"letters without a meaning: {sizes.keys() - LETTERS.keys()}"
        dimensions = tuple((letter, ", ".join(map(str, sizes[letter]))) for letter in LETTERS if letter in sizes)
        return Worksheet(title, said(about), tuple(self.steps), output, tuple(map(said, self.notes)), dimensions)

    def _computed(self, name: str, rows: Axis, cols: Axis, formula: Formula, kind: Kind, digits: int) -> Matrix:
        self._check_size(name, rows, cols)
        values = formula.values((len(rows), len(cols)), self._values)
        return self._add(Matrix(self._prefix + name, rows, cols, values, formula, kind, digits))

    def _add(self, matrix: Matrix) -> Matrix:
        # Spreadsheets ignore case in names. XlsxWriter warns of a name that is an address.
        assert matrix.name.casefold() not in map(str.casefold, self.matrices), matrix.name
        self.matrices[matrix.name], self._values[matrix.name] = matrix, matrix.values
        return matrix

    def _check_size(self, name: str, rows: Axis, cols: Axis) -> None:
        for axis in (rows, cols):
            most = self._longest.get(axis.letter, LONGEST)
            if len(axis) > most:
                raise WorksheetError(
                    f"{self._prefix}{name} is [{len(rows)} × {len(cols)}], too large to follow: expected at "
                    f"most {most} for {axis.letter}, {LETTERS[axis.letter]}. {FITS}. Use fewer tokens, or a small "
                    "module of the same kind"
                )


def check_heads(count: int) -> None:
    """Raise WorksheetError if there are more heads than a worksheet shows."""
    if count > MOST_HEADS:
        raise WorksheetError(
            f"too many heads to follow: expected at most {MOST_HEADS} heads. Received: {count} heads. {FITS}"
        )


def side_by_side(groups: Iterable[Sequence[Matrix]]) -> list[list[Matrix]]:
    """Arrange groups of matrices (such as one group per head) in rows, with as many groups side by side as fit."""
    rows = in_lines(groups, lambda group: sum(len(matrix.cols) + 2 for matrix in group), WIDTH)
    return [[matrix for group in row for matrix in group] for row in rows]
