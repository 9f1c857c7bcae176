"""Writes a worksheet to a file: chooses the writer, writes beside the target, and renames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.errors import ArgumentError, FileError
from headwise.files import replacing

if TYPE_CHECKING:
    from headwise.worksheet.sheet import Worksheet

SUFFIXES = (".xlsx", ".md", ".html")


def write_to(sheet: Worksheet, path: Path) -> None:
    """Write the worksheet in the format of the path's suffix."""
    writer = writer_of(path)
    try:
        with replacing(path) as part:
            writer(sheet, part)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from error


def writer_of(path: Path) -> Callable[[Worksheet, Path], None]:
    """The writer for this file name. ArgumentError for another suffix, WorksheetError if XlsxWriter is missing."""
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
    raise ArgumentError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
