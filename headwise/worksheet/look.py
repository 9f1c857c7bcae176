"""Styles and print settings of a workbook's sheets: fonts, fills, borders, and colours by value."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from headwise.worksheet import colour
from headwise.worksheet.description import Matrix

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet as Page

ROWS_OF_A_PAGE, COLUMNS_OF_A_PAGE = 48, 40
FONT = "Calibri"  # if it is missing, programs use a similar one


def follow_numbers(page: Page, matrix: Matrix, area: str, first: str) -> None:
    """Colours by value, and the values allowed in a mask's cells."""
    from openpyxl.formatting.rule import CellIsRule, ColorScaleRule, FormulaRule
    from openpyxl.styles import Font, PatternFill
    from openpyxl.worksheet.datavalidation import DataValidation

    grey = PatternFill(bgColor=colour.FORBIDDEN_GROUND, fill_type="solid")
    if matrix.kind == "weights":
        low, middle, high = colour.stops()
        ends = {"start_type": "num", "start_value": 0, "mid_type": "num", "mid_value": 0.5, "end_type": "num"}
        rule = ColorScaleRule(**ends, end_value=1, start_color=low, mid_color=middle, end_color=high)
        page.conditional_formatting.add(area, rule)
    elif matrix.kind == "mask":
        page.conditional_formatting.add(area, CellIsRule(operator="equal", formula=["0"], fill=grey))
        # A drop-down list would put texts into the cells, which are not equal to 1.
        choice = DataValidation(type="whole", operator="between", formula1="0", formula2="1", showErrorMessage=True)
        choice.error, choice.errorTitle = "1 = may attend, 0 = may not", "Mask"
        page.add_data_validation(choice)
        choice.add(area)
    elif matrix.formula is not None and any("−∞" in text for text in matrix.formula.texts):
        rule = FormulaRule(formula=[f"ISTEXT({first})"], fill=grey, font=Font(color=colour.FAINT))
        page.conditional_formatting.add(area, rule)


def set_up_printing(page: Page, title: str, rows: int | None = None, columns: int = 1) -> None:
    """A4 landscape; all columns on one page, and all rows if they remain readable."""
    page.page_setup.orientation, page.page_setup.paperSize = "landscape", page.PAPERSIZE_A4
    page.page_setup.fitToWidth = 1 if columns <= COLUMNS_OF_A_PAGE else 0
    page.page_setup.fitToHeight = 0 if rows is None or rows > ROWS_OF_A_PAGE or columns > COLUMNS_OF_A_PAGE else 1
    page.sheet_properties.pageSetUpPr.fitToPage = True
    page.print_options.horizontalCentered = False
    page.page_margins.left = page.page_margins.right = 0.5
    page.page_margins.top, page.page_margins.bottom, page.page_margins.footer = 0.6, 0.8, 0.35
    # A digit at the beginning would be parsed as a font size.
    page.oddFooter.left.text, page.oddFooter.right.text = f" {title}".replace("&", "&&"), "&A, page &P of &N"


def styles() -> dict[str, dict[str, Any]]:
    from openpyxl.styles import Alignment, Border, PatternFill, Side
    from openpyxl.styles import Font as AnyFont

    Font = functools.partial(AnyFont, name=FONT, family=2)
    thin = Side(style="thin", color="DDDBE2")
    box = Border(left=thin, right=thin, top=thin, bottom=thin)

    def ground(of: str) -> PatternFill:
        return PatternFill(fgColor=of, fill_type="solid")

    middle, right = Alignment(horizontal="center"), Alignment(horizontal="right")
    return {
        "title": {"font": Font(size=18, bold=True), "alignment": Alignment(vertical="center")},
        "sentence": {"font": Font(size=11)},
        "symbols": {"font": Font(size=11, italic=True, color=colour.FAINT)},
        "link": {"font": Font(size=10, underline="single", color=colour.GIVEN)},
        "name": {"font": Font(size=11, bold=True)},
        "aside": {"font": Font(size=9, italic=True, color=colour.FAINT)},
        "origin": {
            "font": Font(size=9, italic=True, color=colour.FAINT),
            "alignment": Alignment(wrap_text=True, vertical="top"),
        },
        "corner": {
            "font": Font(size=9, color=colour.FAINT),
            "alignment": middle,
            "fill": ground(colour.HEAD),
            "border": box,
        },
        "column": {"font": Font(size=10, bold=True), "alignment": middle, "fill": ground(colour.HEAD), "border": box},
        "row": {"font": Font(size=10, bold=True), "alignment": right, "fill": ground(colour.HEAD), "border": box},
        "head": {"font": Font(size=11, bold=True), "fill": ground(colour.HEAD), "border": box},
        "given": {
            "font": Font(size=10, color=colour.GIVEN),
            "fill": ground(colour.GIVEN_GROUND),
            "border": box,
            "alignment": right,
        },
        "number": {"font": Font(size=10), "border": box, "alignment": right},
        "output": {"font": Font(size=10, bold=True), "border": box, "alignment": right},
        "plain": {"font": Font(size=10)},
    }
