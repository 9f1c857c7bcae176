"""Reads a column as times: all its cells, in the one format that fits them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from headwise.tasks.options.forecast import ISO, UNIX
from headwise.tasks.rows.tables import as_text
from headwise.tasks.rows.time_steps import Times

NUMBERS = "numbers"
# Signs and letters between the parts of a date count as blanks: see `_plain`.
_SIGNS = re.compile(r"(?:[-/.,:\s年月日号號时時点點分秒년월일시분초]|(?:星期|周|週)[一二三四五六日天]|\([^\d\W]+\))+")
_HALVES = {"上午": " AM ", "午前": " AM ", "오전": " AM ", "下午": " PM ", "午後": " PM ", "오후": " PM "}
_ZONE = r"(?:Z|[+-]\d\d:?(?:\d\d)?)$"  # at the end of a time
_PADDED = re.compile(r"[+-]?0\d")  # 06.2023 is no number
_DAYS = ["%Y %m %d", "%d %m %Y", "%m %d %Y", "%d %m %y", "%m %d %y", "%y %m %d"]
_DAYS += [f"{day} %Y" for month in ("%b", "%B") for day in (f"%d {month}", f"{month} %d", f"%a %d {month}")]
_CLOCKS: tuple[str, ...] = ("", " %H", " %H %M", " %H %M %S", " %H %M %S %f", " %H %M %S GMT")
_CLOCKS += (" %I %M %p", " %I %M %S %p", " %p %I %M", " %p %I %M %S")
_FORMATS = [ISO, *(day + clock for day in _DAYS for clock in _CLOCKS), "%Y %m", "%m %Y", "%b %Y", "%B %Y"]
_RANGES = {"%Y%m%d": (19e6, 21e6), "%Y%m": (19e4, 21e4), "%Y%m%d%H%M": (19e10, 21e10), "%Y%m%d%H%M%S": (19e12, 21e12)}
_RANGES |= {"unix": (1e8, 1e10), "unix-ms": (1e11, 1e13)}
_SAMPLE = 100  # cells on which all formats are tried; the best are tried on all cells
_LEAST = 5  # steps of numbers that may count rows; fewer are equal by chance


def read_times(cells: Sequence[Any], written: str | None = None, *, only: bool = True) -> dict[str, Times]:
    """Return a dict: format -> the times of all cells, for each format that fits the most cells.

    A cell that is no time is NaT or NaN. Formats that give the same times are one. `written` is tried first, or `only`.
    """
    texts = ["" if isinstance(cell, bytes) else as_text(cell).strip() for cell in cells]
    if written is not None and ((times := _parse(texts, written)).notna().all() or only):
        return {written: times} if times.notna().any() else {}
    numbers = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").to_numpy(np.float64)
    numbers[np.isinf(numbers)] = np.nan
    if 2 * np.isfinite(numbers).sum() > len(texts) and not any(map(_PADDED.match, texts)):
        whole = (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**63
        return {NUMBERS: pd.Index(numbers.astype(np.int64) if whole else numbers)}
    filled = [text for text in texts if text]
    sample = filled[:: len(filled) // _SAMPLE + 1]
    counts = {name: int(_parse(sample, name).notna().sum()) for name in _FORMATS}
    found: dict[str, Times] = {}
    for name in (name for name, count in counts.items() if count == max(counts.values()) > 0):
        times = _parse(texts, name)
        if name == ISO and times.notna().all():
            return {name: times}
        if not any(times.equals(other) for other in found.values()):
            found[name] = times
    most = max((times.notna().sum() for times in found.values()), default=0)
    return {name: times for name, times in found.items() if times.notna().sum() == most}


def find_count(numbers: Times, groups: Iterable[Sequence[int]]) -> float | None:
    """Return the step by which numbers rise (or fall) in most rows, if they do so in every row of each group."""
    values = numbers.to_numpy(np.float64)
    with np.errstate(over="ignore"):
        steps = np.concatenate([np.diff(each[np.isfinite(each)]) for each in (values[rows] for rows in groups)])
    if len(steps) < _LEAST or not ((steps > 0).all() or (steps < 0).all()):
        return None
    usual = float(np.median(steps))
    return usual if np.isclose(steps, usual, rtol=1e-3, atol=0).mean() > 0.5 else None


def suggest_format(numbers: Times) -> str | None:
    """Return the format in which all these numbers may be dates: 20240131, 202401, or the time since 1970."""
    some = (name for name, (low, high) in _RANGES.items() if low <= numbers.min() and numbers.max() <= high)
    return next((name for name in some for times in read_times(numbers, name).values() if times.notna().all()), None)


def _parse(texts: Sequence[str], written: str) -> Times:
    """Read texts in a format, as a DatetimeIndex with NaT for each text that does not fit."""
    cells, how = pd.Series(list(texts), dtype=object), {"format": written}
    if written in UNIX:
        cells, how = pd.to_numeric(cells, errors="coerce"), {"unit": UNIX[written]}
    elif written != ISO and "%z" not in written:
        cells, how = cells.map(_plain), {"format": _plain(written)}
    for zone in ({}, {"utc": True}):  # the second: if summer has another offset than winter
        if zone:  # a time without a zone would be one of UTC
            cells = cells.where(cells.str.contains(_ZONE, na=False) if written == ISO else True)
        with warnings.catch_warnings(), suppress(TypeError, ValueError, OverflowError):
            warnings.simplefilter("ignore")
            return pd.DatetimeIndex(pd.to_datetime(cells, errors="coerce", **how, **zone))
    return pd.DatetimeIndex([pd.NaT] * len(texts))


def _plain(text: str) -> str:
    """Write a date without signs, and a quarter as its first month: 2024年4月, 2024/04, 2024Q2 become 2024 4.

    What no date has stays, so that no format fits: offsets from UTC, and words in other languages.
    """
    text = re.sub(r"^(\d{4})\W?Q([1-4])$", lambda found: f"{found[1]} {3 * int(found[2]) - 2}", text)
    for word, half in _HALVES.items():
        text = text.replace(word, half)
    if re.search(r":.*[-+]|\s[-+]", text):
        return text
    return _SIGNS.sub(" ", text).strip()
