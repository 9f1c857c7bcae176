"""The workbook: one sheet per step, with live formulas. openpyxl is imported only when a workbook is written."""

from __future__ import annotations

import importlib
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import WorksheetError
from headwise.worksheet.description import CONSTANTS, LETTERS, SCIENTIFIC, Matrix
from headwise.worksheet.layout import Place, Sheet, lay_out, letters
from headwise.worksheet.look import follow_numbers, set_up_printing, styles
from headwise.worksheet.results import fill_in

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet as Page

    from headwise.worksheet.sheet import Worksheet

OVERVIEW = "Overview"
NUMBER_WIDTH, LABEL_WIDTH, LONGEST_LABEL, GAP = 8.5, 9.0, 26.0, 3.0
LEAST_COLUMNS = 9  # so that a sentence fits on the narrowest sheet


def load_openpyxl() -> Any:
    """Import openpyxl, which happens only here; WorksheetError if it is missing."""
    try:
        return importlib.import_module("openpyxl")
    except ImportError as error:
        raise WorksheetError(
            'a workbook needs openpyxl, which is not installed. Run pip install "headwise[worksheet]", or write the '
            "same steps as Markdown or as a page, to a name that ends in .md or .html"
        ) from error


def write_workbook(sheet: Worksheet, path: Path) -> None:
    """Write the workbook."""
    Writer(sheet).save(path)


class Writer:
    """A workbook that is being built."""

    def __init__(self, sheet: Worksheet) -> None:
        openpyxl = load_openpyxl()
        self.sheet, self.pages = sheet, lay_out(sheet)
        self.places = {place.matrix.name: place for page in self.pages for place in page.places}
        self.book = openpyxl.Workbook()
        self.book.remove(self.book.active)
        self.styles = styles()

    def save(self, path: Path) -> None:
        """Save the workbook, with the results for programs that cannot calculate."""
        self.book.properties.title, self.book.properties.creator = self.sheet.title, "headwise"
        # Spreadsheets recalculate it when they open it; the results in the file are for previews.
        self.book.calculation.fullCalcOnLoad = True
        self._overview()
        for number in range(len(self.pages)):
            self._page(number)
        self._names()
        self.book.save(path)
        fill_in(path, self._results())

    def _results(self) -> dict[str, dict[str, float | str]]:
        """The result of each cell, by sheet and address; also plain numbers, since openpyxl writes 16 of 17 digits."""
        found: dict[str, dict[str, float | str]] = {page.name: {} for page in self.pages}
        for place in self.places.values():
            rows, cols = place.matrix.shape
            for i in range(rows):
                for j in range(cols):
                    value = float(place.matrix.values[i, j])
                    at = place.address(i + 1, j + 1)
                    found[place.sheet][at] = value if value != -float("inf") else place.matrix.shown(i, j)
        return found

    def _names(self) -> None:
        from openpyxl.workbook.defined_name import DefinedName

        for name, place in self.places.items():
            self.book.defined_names[name] = DefinedName(name, attr_text=place.absolute)

    # --- One step ------------------------------------------------------------------------------------------------

    def _page(self, number: int) -> None:
        from openpyxl.styles import Alignment

        layout = self.pages[number]
        page = self.book.create_sheet(layout.name)
        wide = max(layout.width, LEAST_COLUMNS)
        widths = self._widths(layout)
        for col in range(1, wide + 1):
            page.column_dimensions[letters(col)].width = widths.get(col, NUMBER_WIDTH)
        room = sum(widths.get(col, NUMBER_WIDTH) for col in range(1, wide + 1))
        step = layout.step
        for row, text, style in (
            (1, step.heading, "title"),
            (2, step.sentence, "sentence"),
            (3, step.symbols, "symbols"),
        ):
            self._text(page, row, 1, text, style)
            page.merge_cells(start_row=row, start_column=1, end_row=row, end_column=wide)
        lines = -(-len(step.sentence) // max(1, int(room * 1.05)))
        page.row_dimensions[1].height, page.row_dimensions[2].height = 26, 16 * lines + 2
        page.cell(2, 1).alignment = Alignment(wrap_text=True, vertical="top")
        self._links(page, number)
        for place in layout.places:
            self._matrix(page, place)
            if not place.matrix.is_number:
                room = sum(widths.get(place.col + j, NUMBER_WIDTH) for j in range(len(place.matrix.cols) + 1))
                lines = -(-_wide(origin(place.matrix)) // int(room * 0.95))
                height = page.row_dimensions[place.row + 1].height or 0
                page.row_dimensions[place.row + 1].height = max(height, 12.5 * lines + 2)
        page.freeze_panes = "B5"
        page.sheet_view.showGridLines = False
        set_up_printing(page, self.sheet.title, layout.height, layout.width)

    def _links(self, page: Page, number: int) -> None:
        """Add links to the previous and the next sheet."""
        targets = [(OVERVIEW, OVERVIEW)]
        if number:
            targets.append((f"← {self.pages[number - 1].name}", self.pages[number - 1].name))
        if number + 1 < len(self.pages):
            targets.append((f"{self.pages[number + 1].name} →", self.pages[number + 1].name))
        for col, (text, target) in zip((1, 3, 7), targets, strict=False):
            self._link(page, 4, col, text, target)

    def _link(self, page: Page, row: int, col: int, text: str, target: str) -> None:
        from openpyxl.worksheet.hyperlink import Hyperlink

        cell = self._text(page, row, col, text, "link")
        cell.hyperlink = Hyperlink(ref=cell.coordinate, location=f"'{target}'!A1", display=text)

    def _widths(self, layout: Sheet) -> dict[int, float]:
        """The width of each column: labels and numbers fit, and the name of a matrix ends before the next matrix."""
        widths: dict[int, float] = {}

        def widen(col: int, wanted: float) -> None:
            widths[col] = max(min(wanted, LONGEST_LABEL), widths.get(col, 0.0))

        for place in layout.places:
            matrix = place.matrix
            texts = [_name(matrix)] if matrix.is_number else [*matrix.rows.labels, _corner(matrix)]
            widen(place.col, max(LABEL_WIDTH, *(_wide(text) * 1.1 + 2 for text in texts)))
            for j, label in enumerate(matrix.cols.labels):
                longest = max(_wide(label), *(len(matrix.shown(i, j)) for i in range(len(matrix.rows))))
                widen(place.col + 1 + j, max(NUMBER_WIDTH, longest * 1.1 + 2))
        for place, after in pairwise(layout.places):
            if after.row == place.row:
                room = sum(widths.get(col, NUMBER_WIDTH) for col in range(place.col, after.col - 1))
                widths[after.col - 1] = max(
                    GAP, _wide(_name(place.matrix)) * 1.2 - room, widths.get(after.col - 1, 0.0)
                )
        return widths

    def _matrix(self, page: Page, place: Place) -> None:
        """Write the name, size, formula, labels and cells of a matrix."""
        matrix = place.matrix
        self._text(page, place.row, place.col, _name(matrix), "name")
        self._text(page, *place.origin, origin(matrix), "aside" if matrix.is_number else "origin")
        if not matrix.is_number:
            row, wide = place.row + 1, len(matrix.cols)
            page.merge_cells(start_row=row, start_column=place.col, end_row=row, end_column=place.col + wide)
        if not matrix.is_number:
            self._text(page, place.labels_row, place.col, _corner(matrix), "corner")
        for j, label in enumerate(matrix.cols.labels, start=1):
            if label:
                self._text(page, place.labels_row, place.col + j, label, "column")
        for i, label in enumerate(matrix.rows.labels, start=1):
            if label:
                self._text(page, place.at(i, 1)[0], place.col, label, "row")
            for j in range(1, len(matrix.cols) + 1):
                self._cell(page, place, i, j)
        follow_numbers(page, matrix, place.address(None, None), place.address(1, 1))

    def _cell(self, page: Page, place: Place, i: int, j: int) -> None:
        from openpyxl.worksheet.formula import ArrayFormula

        matrix, formula = place.matrix, place.matrix.formula
        cell = page.cell(*place.at(i, j))
        style = "given" if matrix.kind in CONSTANTS else ("output" if matrix.kind == "output" else "number")
        self._style(cell, style)
        cell.number_format = "0E+00" if matrix.digits == SCIENTIFIC else f"0.{'0' * matrix.digits}".rstrip(".")
        if formula is None:
            value = float(matrix.values[i - 1, j - 1])
            cell.value = int(value) if value.is_integer() and not matrix.digits else value
        elif not formula.whole:
            cell.value = "=" + formula.addressed(i, j, lambda *at: self._address(place.sheet, *at))
        elif (i, j) == (1, 1):
            cell.value = ArrayFormula(place.address(None, None), f"={formula.texts[0]}")

    def _address(self, sheet: str, name: str, row: int | None, col: int | None) -> str:
        """The address of cells, for a formula on a given sheet."""
        place = self.places[name]
        address = place.address(row, col)
        return address if place.sheet == sheet else f"'{place.sheet}'!{address}"

    # --- The first sheet -----------------------------------------------------------------------------------------

    def _overview(self) -> None:
        from openpyxl.styles import Alignment

        page = self.book.create_sheet(OVERVIEW)
        for letter, width in zip("ABC", (34, 60, 40), strict=True):
            page.column_dimensions[letter].width = width
        self._text(page, 1, 1, self.sheet.title, "title")
        self._text(page, 2, 1, self.sheet.about, "sentence")
        page.row_dimensions[1].height = 26
        how = (
            "You can change blue numbers, such as a 1 of the mask to 0: all later steps are recalculated. Black "
            "numbers are formulas: click on a cell to see its own. Every matrix is a named range. Above each matrix "
            "its formula is written with names: X[i,j] is the cell of X in the same row and column, X[i,:] the same "
            "row, X[:,j] the same column."
        )
        self._text(page, 3, 1, how, "sentence")
        for row in (1, 2, 3):
            page.merge_cells(start_row=row, start_column=1, end_row=row, end_column=3)
            page.cell(row, 1).alignment = Alignment(wrap_text=True, vertical="top")
        page.row_dimensions[2].height, page.row_dimensions[3].height = 18, 36
        row = self._table(page, 5, ("Step", "What it does", "In symbols"))
        for layout in self.pages:
            self._link(page, row, 1, layout.name, layout.name)
            self._text(page, row, 2, layout.step.sentence, "plain")
            self._text(page, row, 3, layout.step.symbols, "symbols")
            for col in (1, 2, 3):
                page.cell(row, col).alignment = Alignment(wrap_text=True, vertical="top")
            lines = max(
                -(-len(layout.step.sentence) // 66), -(-len(layout.step.symbols) // 44), -(-len(layout.name) // 33)
            )
            page.row_dimensions[row].height = 15 * lines + 3
            row += 1
        row = self._table(page, row + 1, ("Dimension", "What it counts", "Size"))
        for letter, size in self.sheet.dimensions:
            for col, text in enumerate((letter, LETTERS[letter], size), start=1):
                self._text(page, row, col, text, "plain")
            row += 1
        for note in self.sheet.notes:
            self._text(page, row + 1, 1, note, "sentence")
            page.merge_cells(start_row=row + 1, start_column=1, end_row=row + 1, end_column=3)
            page.cell(row + 1, 1).alignment = Alignment(wrap_text=True, vertical="top")
            page.row_dimensions[row + 1].height = 32
            row += 1
        page.freeze_panes = "A6"
        page.sheet_view.showGridLines = False
        set_up_printing(page, self.sheet.title)

    def _table(self, page: Page, row: int, heads: tuple[str, ...]) -> int:
        for col, text in enumerate(heads, start=1):
            self._text(page, row, col, text, "head")
        return row + 1

    # --- Cells ---------------------------------------------------------------------------------------------------

    def _text(self, page: Page, row: int, col: int, text: str, style: str) -> Any:
        """Write text as text: a token may look like a formula."""
        cell = page.cell(row, col)
        cell.value = text
        cell.data_type = "s"
        if text[:1] in ("=", "+", "-", "@"):
            cell.quotePrefix = True
        self._style(cell, style)
        return cell

    def _style(self, cell: Any, name: str) -> None:
        for attribute, value in self.styles[name].items():
            setattr(cell, attribute, value)


def origin(matrix: Matrix) -> str:
    """Where its numbers come from: "= MMULT(X,W_Q_1)", or that they may be changed."""
    formula = matrix.formula
    if formula is None:
        return "1 = may, 0 = may not: change it" if matrix.kind == "mask" else "change it"
    return f"= {formula.summary}" if formula.is_uniform else f"{matrix.summarised}: = {formula.summary}"


def _name(matrix: Matrix) -> str:
    if matrix.is_number:
        return matrix.name
    # With a single column there is no room for the size twice.
    size = matrix.size.partition(" = ")[0] if len(matrix.cols) == 1 else matrix.size
    return f"{matrix.name}  {size}"


def _corner(matrix: Matrix) -> str:
    """The letters of both axes: "Q ╲ K"."""
    rows, cols = matrix.rows.letter, matrix.cols.letter
    return f"{rows} ╲ {cols}" if rows and cols else rows or cols


def _wide(text: str) -> int:
    """The width of a text in narrow letters."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
