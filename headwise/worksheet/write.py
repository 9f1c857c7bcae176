"""Writes a worksheet to a file: chooses the writer, writes beside the target, and renames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from headwise.errors import ArgumentError, FileError
from headwise.files import replacing
from headwise.worksheet.description import Worksheet
from headwise.worksheet.given import Inputs
from headwise.worksheet.make import make

SUFFIXES = (".xlsx", ".md", ".html")


def write(
    module: nn.Module,
    inputs: Inputs,
    path: str | Path,
    *,
    tokens: Sequence[str] | None = None,
    memory_tokens: Sequence[str] | None = None,
    title: str | None = None,
    **arguments: Any,
) -> Worksheet:
    """Write the steps of one forward pass of a small module: `make`, then `Worksheet.write`, with their arguments.

    >>> headwise.worksheet.write(module, x, "attention.xlsx", mask=masks.causal(), tokens=["I", "drink", "and"])

    Returns:
        The worksheet that was written.

    Raises:
        ArgumentError: the path does not end in .xlsx, .md or .html.
        WorksheetError: an unsupported module or option, too large a module, or openpyxl is missing.
        FileError: the file cannot be written.
    """
    writer_of(Path(path))  # before any work
    sheet = make(module, inputs, tokens=tokens, memory_tokens=memory_tokens, title=title, **arguments)
    sheet.write(path)
    return sheet


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
    """The writer for this file name. Raises ArgumentError for another suffix, WorksheetError if openpyxl is missing."""
    suffix = path.suffix.lower()
    if suffix == ".xlsx":
        from headwise.worksheet.xlsx import load_openpyxl, write_workbook

        load_openpyxl()
        return write_workbook
    if suffix == ".md":
        from headwise.worksheet.markdown import write_markdown

        return write_markdown
    if suffix == ".html":
        from headwise.worksheet.page import write_page

        return write_page
    raise ArgumentError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
