"""Writes the workbook: one sheet per step, with live formulas. XlsxWriter is imported only if it is needed."""

from __future__ import annotations

import importlib
import io
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise import tables
from headwise.errors import WorksheetError
from headwise.extras import install
from headwise.language import said
from headwise.worksheet.description import CONSTANTS, LETTERS, SCIENTIFIC, Matrix, Steps
from headwise.worksheet.layout import Place, Sheet, lay_out
from headwise.worksheet.look import FONT, STYLES, WRAPPED, follow_numbers, set_up_printing

if TYPE_CHECKING:
    from xlsxwriter.format import Format
    from xlsxwriter.worksheet import Worksheet as Page


OVERVIEW = "Overview"
HOW = (
    "You can change blue numbers, such as a 1 of the mask to 0: all later steps are recalculated. Black numbers are "
    "formulas: click on a cell to see its own. Every matrix is a named range. Above each matrix its formula is written "
    "with names: X[i,j] is the cell of X in the same row and column, X[i,:] the same row, X[:,j] the same column."
)
NUMBER_WIDTH, LABEL_WIDTH, LONGEST_LABEL, GAP = 8.5, 9.0, 26.0, 3.0
DIGIT = 7  # the width of a digit in pixels, which is the unit of these widths
LEAST_COLUMNS = 9  # the minimum number of columns, so that a sentence fits on the narrowest sheet


def load_xlsxwriter() -> Any:
    """Import XlsxWriter and return it; WorksheetError if it is missing."""
    try:
        return importlib.import_module("xlsxwriter")
    except ImportError as error:
        raise WorksheetError(
            "a workbook needs XlsxWriter, which is not installed: {command}, or write the same steps as Markdown "
            "or as a page, to a name that ends in .md or .html",
            command=install("worksheet"),
        ) from error


def write_workbook(sheet: Steps, path: Path) -> None:
    """Write the workbook to a file."""
    path.write_bytes(Writer(sheet).written())


class Writer:
    """A workbook that is being written. Rows and columns are counted from 1, as in `layout.py`."""

    def __init__(self, sheet: Steps) -> None:
        self.file = io.BytesIO()
        self.book = load_xlsxwriter().Workbook(self.file, {"in_memory": True})
        self.sheet, self.layouts = sheet, lay_out(sheet)
        self.places = {place.matrix.name: place for layout in self.layouts for place in layout.places}
        self.formats: dict[tuple[Any, ...], Format] = {}

    def written(self) -> bytes:
        """Write all sheets; returns the bytes of the file."""
        self.book.set_properties({"title": self.sheet.title, "author": "headwise"})
        self._overview()
        for number, layout in enumerate(self.layouts):
            self._page(number, layout)
        for name, place in self.places.items():
            self.book.define_name(name, f"={place.absolute}")
        self.book.close()
        return self.file.getvalue()

    # --- One step ------------------------------------------------------------------------------------------------

    def _page(self, number: int, layout: Sheet) -> None:
        page, step = self.book.add_worksheet(layout.name), layout.step
        widths = dict.fromkeys(range(1, max(layout.width, LEAST_COLUMNS) + 1), NUMBER_WIDTH) | _widths(layout)
        for col, width in widths.items():
            page.set_column_pixels(col - 1, col - 1, round(width * DIGIT))
        texts = {"title": step.heading, "sentence": step.sentence, "symbols": step.symbols}
        for row, (style, text) in enumerate(texts.items(), start=1):
            self._text(page, row, 1, text, style, until=len(widths))
        heights = {1: 26.0, 2: 16.0 * _lines(step.sentence, sum(widths.values()) * 1.05) + 2}
        # Links to the overview, to the previous sheet and to the next sheet.
        targets = {said(OVERVIEW): said(OVERVIEW)}
        if number:
            targets[f"← {self.layouts[number - 1].name}"] = self.layouts[number - 1].name
        if number + 1 < len(self.layouts):
            targets[f"{self.layouts[number + 1].name} →"] = self.layouts[number + 1].name
        for col, (text, target) in zip((1, 3, 7), targets.items(), strict=False):
            self._link(page, 4, col, text, target)
        for place in layout.places:
            self._matrix(page, place)
            if not place.matrix.is_number:
                room = sum(widths[place.col + j] for j in range(len(place.matrix.cols) + 1))
                height = 12.5 * _lines(origin(place.matrix), room * 0.95) + 2
                heights[place.row + 1] = max(height, heights.get(place.row + 1, 0.0))
        for row, height in heights.items():
            page.set_row(row - 1, height)
        page.freeze_panes("B5")
        set_up_printing(page, self.sheet.title, layout.height, layout.width)

    def _matrix(self, page: Page, place: Place) -> None:
        """Write the name, size, formula, labels and cells of a matrix."""
        matrix = place.matrix
        self._text(page, place.row, place.col, _name(matrix), "name")
        if matrix.is_number:
            self._text(page, *place.origin, origin(matrix), "aside")
        else:
            self._text(page, *place.origin, origin(matrix), "origin", until=place.col + len(matrix.cols))
            self._text(page, place.labels_row, place.col, matrix.corner, "corner")
        for j, label in enumerate(matrix.cols.labels, start=1):
            if label:
                self._text(page, place.labels_row, place.col + j, label, "column")
        style = "given" if matrix.kind in CONSTANTS else ("output" if matrix.kind == "output" else "number")
        shape = "0E+00" if matrix.digits == SCIENTIFIC else f"0.{'0' * matrix.digits}".rstrip(".")
        format = self._format(style, num_format=shape)
        for i, label in enumerate(matrix.rows.labels, start=1):
            if label:
                self._text(page, place.at(i, 1)[0], place.col, label, "row")
            for j in range(1, len(matrix.cols) + 1):
                self._cell(page, place, i, j, format)
        follow_numbers(self.book, page, matrix, place)

    def _cell(self, page: Page, place: Place, i: int, j: int, format: Format) -> None:
        """Write a number, or a formula with its result, for programs that show a file but cannot calculate."""
        matrix, formula, at = place.matrix, place.matrix.formula, place.address(i, j)
        value = float(matrix.values[i - 1, j - 1])
        if formula is not None and not formula.whole:
            text = formula.addressed(i, j, lambda *at: self._address(place.sheet, *at))
            page.write_formula(at, f"={text}", format, value if value != -float("inf") else matrix.shown(i - 1, j - 1))
        elif formula is not None and (i, j) == (1, 1):
            page.write_array_formula(place.address(None, None), f"={formula.texts[0]}", format, value)
        else:
            page.write_number(at, value, format)

    def _address(self, sheet: str, name: str, row: int | None, col: int | None) -> str:
        """Return the address of cells of the matrix `name` for a formula on `sheet`; None = all rows or columns."""
        place = self.places[name]
        address = place.address(row, col)
        return address if place.sheet == sheet else f"'{place.sheet}'!{address}"

    # --- The first sheet -----------------------------------------------------------------------------------------

    def _overview(self) -> None:
        page = self.book.add_worksheet(said(OVERVIEW))
        for col, width in enumerate((34, 60, 40)):
            page.set_column_pixels(col, col, width * DIGIT)
        texts = ((self.sheet.title, "title", 26), (self.sheet.about, "sentence", 18), (said(HOW), "sentence", 36))
        for row, (text, style, height) in enumerate(texts, start=1):
            self._line(page, row, text, style, height)
        row = self._table(page, 5, tuple(map(said, ("Step", "What it does", "In symbols"))))
        for layout in self.layouts:
            self._link(page, row, 1, layout.name, layout.name, **WRAPPED)
            self._text(page, row, 2, layout.step.sentence, "plain")
            self._text(page, row, 3, layout.step.symbols, "symbols")
            rooms = ((layout.step.sentence, 76), (layout.step.symbols, 44), (layout.name, 33))
            page.set_row(row - 1, 15 * max(_lines(text, room) for text, room in rooms) + 3)
            row += 1
        row = self._table(page, row + 1, tuple(map(said, ("Dimension", "What it counts", "Size"))))
        for letter, size in self.sheet.dimensions:
            for col, text in enumerate((letter, said(LETTERS[letter]), size), start=1):
                self._text(page, row, col, text, "plain")
            row += 1
        for below, note in enumerate(self.sheet.notes, start=1):
            self._line(page, row + below, note, "sentence", 32)
        page.freeze_panes("A6")
        set_up_printing(page, self.sheet.title)

    def _line(self, page: Page, row: int, text: str, style: str, height: float) -> None:
        self._text(page, row, 1, text, style, until=3)
        page.set_row(row - 1, height)

    def _table(self, page: Page, row: int, heads: tuple[str, ...]) -> int:
        for col, text in enumerate(heads, start=1):
            self._text(page, row, col, text, "head")
        return row + 1

    # --- Cells ---------------------------------------------------------------------------------------------------

    def _text(self, page: Page, row: int, col: int, text: str, style: str, *, until: int | None = None) -> None:
        """Write text as text, because a token may look like a formula. With `until`, columns up to it are merged."""
        format = self._format(style, quote_prefix=text[:1] in ("=", "+", "-", "@"))
        if until is not None:
            page.merge_range(row - 1, col - 1, row - 1, until - 1, "", format)
        page.write_string(row - 1, col - 1, text, format)

    def _link(self, page: Page, row: int, col: int, text: str, target: str, **look: Any) -> None:
        page.write_url(row - 1, col - 1, f"internal:'{target}'!A1", self._format("link", **look), text)

    def _format(self, style: str, **look: Any) -> Format:
        key = (style, *look.items())
        if key not in self.formats:
            self.formats[key] = self.book.add_format({"font_name": FONT, **STYLES[style], **look})
        return self.formats[key]


def _widths(layout: Sheet) -> dict[int, float]:
    """Compute the width of each column: labels and numbers fit, and a matrix's name ends before the next matrix."""
    widths: dict[int, float] = {}

    def widen(col: int, wanted: float) -> None:
        widths[col] = max(min(wanted, LONGEST_LABEL), widths.get(col, 0.0))

    for place in layout.places:
        matrix = place.matrix
        texts = [_name(matrix)] if matrix.is_number else [*matrix.rows.labels, matrix.corner]
        widen(place.col, max(LABEL_WIDTH, *(tables.width(text) * 1.1 + 2 for text in texts)))
        for j, label in enumerate(matrix.cols.labels):
            longest = max(tables.width(label), *(len(matrix.shown(i, j)) for i in range(len(matrix.rows))))
            widen(place.col + 1 + j, max(NUMBER_WIDTH, longest * 1.1 + 2))
    for place, after in pairwise(layout.places):
        if after.row == place.row:
            room = sum(widths.get(col, NUMBER_WIDTH) for col in range(place.col, after.col - 1))
            missing = tables.width(_name(place.matrix)) * 1.2 - room
            widths[after.col - 1] = max(GAP, missing, widths.get(after.col - 1, 0.0))
    return widths


def _lines(text: str, room: float) -> int:
    """Return the number of lines that a text needs, if `room` narrow letters fit into a line."""
    return -(-tables.width(text) // max(1, int(room)))


def origin(matrix: Matrix) -> str:
    """Return the formula of a matrix, such as "= MMULT(X,W_Q_1)", or a note that its numbers may be changed."""
    return matrix.origin or said("1 = may, 0 = may not: change it" if matrix.kind == "mask" else "change it")


def _name(matrix: Matrix) -> str:
    if matrix.is_number:
        return matrix.name
    # With a single column there is no room for the size twice.
    size = matrix.size.partition(" = ")[0] if len(matrix.cols) == 1 else matrix.size
    return f"{matrix.name}  {size}"
