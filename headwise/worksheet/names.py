"""Names of ranges that every spreadsheet accepts: `Q_1`, but not `Q1`, an address, or `COS`, a function."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headwise.errors import WorksheetError
from headwise.worksheet.formulas import FUNCTIONS

_FORM = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ADDRESS = re.compile(r"[A-Za-z]{1,3}[0-9]+\Z")  # A1 … XFD1048576, and in LibreOffice further still
_ROW_AND_COLUMN = re.compile(r"(r[0-9]*(c[0-9]*)?|c[0-9]*)\Z", re.IGNORECASE)  # R1C1, the other way to write addresses
_WORDS = ("true", "false")
LONGEST = 255


def is_name(name: str) -> bool:
    """Whether Excel and LibreOffice accept this as the name of a range."""
    if not _FORM.match(name) or len(name) > LONGEST or name.lower() in _WORDS or name.upper() in FUNCTIONS:
        return False
    return not _ADDRESS.match(name) and not _ROW_AND_COLUMN.match(name)


def check_name(name: str, taken: Iterable[str]) -> None:
    """Raise WorksheetError unless `name` is valid and new, ignoring case."""
    if not is_name(name):
        raise WorksheetError(
            f"{name!r} cannot name a range of cells: it is an address or a function, or has characters that are not "
            "allowed"
        )
    if name.casefold() in (other.casefold() for other in taken):
        raise WorksheetError(f"{name!r} already names other cells of this worksheet")
