"""Reading a workbook back with openpyxl alone: by the names of its ranges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
from openpyxl.cell.cell import Cell


class Workbook:
    """`Workbook(path)["A_1"]` are the numbers of that range."""

    def __init__(self, path: Path, *, results: bool = True) -> None:
        self.book = openpyxl.load_workbook(path, data_only=results)

    def cells(self, name: str) -> list[list[Cell]]:
        """The cells of a named range."""
        ((sheet, area),) = self.book.defined_names[name].destinations
        found = self.book[sheet][area.replace("$", "")]
        return [list(row) for row in found] if isinstance(found, tuple) else [[found]]

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array([[number(cell.value) for cell in row] for row in self.cells(name)])

    @property
    def names(self) -> list[str]:
        return list(self.book.defined_names)

    def every_cell(self) -> Iterator[Cell]:
        for sheet in self.book:
            for row in sheet.iter_rows():
                yield from (cell for cell in row if cell.value is not None)

    @property
    def errors(self) -> list[str]:
        """#VALUE! and the like."""
        return [f"{cell.parent.title}!{cell.coordinate}: {cell.value}" for cell in self.every_cell() if is_error(cell)]


def is_error(cell: Cell) -> bool:
    return cell.data_type == "e" or (isinstance(cell.value, str) and cell.value.startswith(("#", "Err:")))


def number(value: Any) -> float:
    return -np.inf if value == "−∞" else float(value)
