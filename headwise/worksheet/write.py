"""Makes the worksheet of a module and writes it to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from headwise.worksheet.given import Inputs
from headwise.worksheet.make import make
from headwise.worksheet.sheet import Worksheet
from headwise.worksheet.writers import writer_of


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
        WorksheetError: an unsupported module or option, too large a module, or XlsxWriter is missing.
        FileError: the file cannot be written.
    """
    writer_of(Path(path))  # before any work
    sheet = make(module, inputs, tokens=tokens, memory_tokens=memory_tokens, title=title, **arguments)
    sheet.write(path)
    return sheet
