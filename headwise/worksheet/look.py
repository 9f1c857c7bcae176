"""Sets the look of a workbook's sheets: fonts, grounds, borders, colours that depend on values, and printing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwise.language import said
from headwise.worksheet import colour
from headwise.worksheet.description import Matrix
from headwise.worksheet.layout import Place

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.worksheet import Worksheet as Page

ROWS_OF_A_PAGE, COLUMNS_OF_A_PAGE = 48, 40
FONT = "Calibri"  # if this font is missing, programs use a similar one
A4 = 9

_FAINT, _GIVEN, _HEAD = (f"#{each}" for each in (colour.FAINT, colour.GIVEN, colour.HEAD))
_BOX = {"border": 1, "border_color": "#DDDBE2"}
_NUMBER = {"font_size": 10, "align": "right", **_BOX}
_LABEL = {"font_size": 10, "bold": True, "bg_color": _HEAD, **_BOX}
_FORMULA = {"font_size": 9, "italic": True, "font_color": _FAINT}
WRAPPED = {"text_wrap": True, "valign": "top"}
STYLES: dict[str, dict[str, Any]] = {
    "title": {"font_size": 18, "bold": True, "valign": "vcenter"},
    "sentence": {"font_size": 11, **WRAPPED},
    "symbols": {"font_size": 11, "italic": True, "font_color": _FAINT, **WRAPPED},
    "link": {"font_size": 10, "underline": 1, "font_color": _GIVEN},
    "name": {"font_size": 11, "bold": True},
    "aside": _FORMULA,
    "origin": {**_FORMULA, **WRAPPED},
    "corner": {"font_size": 9, "font_color": _FAINT, "align": "center", "bg_color": _HEAD, **_BOX},
    "column": {**_LABEL, "align": "center"},
    "row": {**_LABEL, "align": "right"},
    "head": {**_LABEL, "font_size": 11},
    "given": {**_NUMBER, "font_color": _GIVEN, "bg_color": f"#{colour.GIVEN_GROUND}"},
    "number": _NUMBER,
    "output": {**_NUMBER, "bold": True},
    "plain": {"font_size": 10, **WRAPPED},
}


def follow_numbers(book: Workbook, page: Page, matrix: Matrix, place: Place) -> None:
    """Give a matrix colours that depend on its values; and allow only 0 and 1 in the cells of a mask."""
    area, grey = place.address(None, None), f"#{colour.FORBIDDEN_GROUND}"
    if matrix.kind == "weights":
        rule: dict[str, Any] = {"type": "3_color_scale"}
        for name, number, stop in zip(("min", "mid", "max"), (0, 0.5, 1), colour.stops(), strict=True):
            rule |= {f"{name}_type": "num", f"{name}_value": number, f"{name}_color": f"#{stop}"}
        page.conditional_format(area, rule)
    elif matrix.kind == "mask":
        ground = book.add_format({"bg_color": grey})
        page.conditional_format(area, {"type": "cell", "criteria": "==", "value": 0, "format": ground})
        # A drop-down list would put texts into the cells, which are not equal to 1.
        choice = {"validate": "integer", "criteria": "between", "minimum": 0, "maximum": 1, "ignore_blank": False}
        page.data_validation(
            area, {**choice, "error_title": said("Mask"), "error_message": said("1 = may attend, 0 = may not")}
        )
    elif matrix.formula is not None and any("−∞" in text for text in matrix.formula.texts):
        faint = book.add_format({"bg_color": grey, "font_color": _FAINT})
        first = place.address(1, 1)
        page.conditional_format(area, {"type": "formula", "criteria": f"=ISTEXT({first})", "format": faint})


def set_up_printing(page: Page, title: str, rows: int | None = None, columns: int = 1) -> None:
    """Set up printing: A4 landscape, all columns on one page, and all rows if they stay readable. Hides grid lines."""
    page.hide_gridlines(2)
    page.set_landscape()
    page.set_paper(A4)
    whole = rows is not None and rows <= ROWS_OF_A_PAGE and columns <= COLUMNS_OF_A_PAGE
    page.fit_to_pages(1 if columns <= COLUMNS_OF_A_PAGE else 0, 1 if whole else 0)
    page.set_margins(left=0.5, right=0.5, top=0.6, bottom=0.8)
    # A digit at the beginning would be parsed as a font size.
    page.set_footer(f"&L {title.replace('&', '&&')}&R{said('&A, page &P of &N')}", {"margin": 0.35})
