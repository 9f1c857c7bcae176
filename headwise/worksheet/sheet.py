"""`Worksheet`: the steps of one attention computation, which can be written to a file or printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.errors import ArgumentError
from headwise.files import writing
from headwise.worksheet.description import Steps

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, eq=False)
class Worksheet(Steps):
    """An attention computation as a list of steps, which can be followed from the inputs to the output.

    >>> sheet = headwise.worksheet.make(module, x, tokens=["I", "drink"])
    >>> for step in sheet: print(step.title)
    >>> sheet["A_1"].values                                 # the weights of head 1
    >>> sheet.write("attention.xlsx")                       # or .md, .html
    >>> sheet.show()                                        # in the terminal
    """

    def write(self, path: str | Path) -> None:
        """Write the worksheet to a file: a workbook (.xlsx), Markdown (.md) or a page (.html).

        Raises:
            ArgumentError: the file name has another suffix.
            WorksheetError: XlsxWriter, which a workbook needs, is not installed.
            FileError: the file cannot be written.
        """
        path = Path(path)
        writer = choose_writer(path)
        with writing(path) as part:
            writer(self, part)

    def show(self, console: Console | None = None) -> None:
        """Print the worksheet to `console`, by default to standard output."""
        from headwise.worksheet.terminal import print_worksheet

        print_worksheet(self, console)


def choose_writer(path: Path) -> Callable[[Steps, Path], None]:
    """Return the function that writes this kind of file. ArgumentError: wrong suffix; WorksheetError: no XlsxWriter."""
    suffix = path.suffix.lower()
    if suffix == ".xlsx":
        from headwise.worksheet.xlsx import load_xlsxwriter, write_workbook

        load_xlsxwriter()
        return write_workbook
    if suffix == ".md":
        from headwise.worksheet.markdown import write_markdown

        return write_markdown
    if suffix == ".html":
        from headwise.worksheet.page import write_page

        return write_page
    raise ArgumentError(f"{path}: expected a name that ends in .xlsx, .md, .html")
