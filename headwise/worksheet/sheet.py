"""A worksheet: the steps of one attention computation, which can be written to a file or printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.worksheet.description import Matrix, Step
from headwise.worksheet.writers import write_to

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, eq=False)
class Worksheet:
    """A computation that can be followed from the inputs to the output.

    >>> sheet = headwise.worksheet.make(module, x, tokens=["I", "drink"])
    >>> for step in sheet: print(step.title)
    >>> sheet["A_1"].values                                 # the weights of head 1
    >>> sheet.write("attention.xlsx")                       # or .md, .html
    >>> sheet.show()                                        # in the terminal
    """

    title: str
    about: str
    steps: tuple[Step, ...]
    output: Matrix
    notes: tuple[str, ...] = ()
    dimensions: tuple[tuple[str, str], ...] = field(default=())  # letter, its size: "5", or "4, 8"

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, name: str) -> Matrix:
        return self.matrices[name]

    @property
    def matrices(self) -> dict[str, Matrix]:
        """All matrices by name."""
        return {matrix.name: matrix for step in self.steps for matrix in step.matrices}

    def write(self, path: str | Path) -> None:
        """Write the worksheet to a file: a workbook (.xlsx), Markdown (.md) or a page (.html).

        Raises:
            ArgumentError: the name has another suffix.
            WorksheetError: XlsxWriter, which a workbook needs, is not installed.
            FileError: the file cannot be written.
        """
        write_to(self, Path(path))

    def show(self, console: Console | None = None) -> None:
        """Print the worksheet, by default to standard output."""
        from headwise.worksheet.terminal import print_worksheet

        print_worksheet(self, console)
