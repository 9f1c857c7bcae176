"""Finds the visual order of pieces of text on a line, if some of them are read from right to left.

matplotlib orders the characters within a piece; this module orders the pieces. It implements the Unicode bidirectional
algorithm (UAX 9) as far as lines of tokens need it: one level of embedding.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from typing import Literal

Direction = Literal["L", "R"]


def find_direction(texts: Sequence[str]) -> Direction:
    """Return the most frequent direction of the pieces of text; pieces without a direction do not count."""
    found = [_strong(text) for text in texts]
    return "R" if found.count("R") > found.count("L") else "L"


def arrange(texts: Sequence[str], base: Direction) -> list[tuple[int, Direction]]:
    """Return the pieces of one line in the order from left to right: (index in `texts`, direction)."""
    resolved = _resolve([_strong(text) for text in texts], base)
    runs = [list(run) for _, run in itertools.groupby(range(len(texts)), key=resolved.__getitem__)]
    if base == "R":
        runs.reverse()
    return [(i, resolved[i]) for run in runs for i in (run[::-1] if resolved[run[0]] == "R" else run)]


def joins(text: str, following: str) -> bool:
    """Return whether the letters at the boundary of two pieces may be joined, as in Arabic."""
    return all(unicodedata.bidirectional(character) == "AL" for character in (text[-1:], following[:1]) if character)


def _strong(text: str) -> Direction | None:
    """Return the direction of a piece; None for spaces and punctuation. Numbers are read from left to right."""
    kinds = {unicodedata.bidirectional(character) for character in text}
    if kinds & {"R", "AL"}:
        return "R"
    return "L" if kinds & {"L", "EN", "AN"} else None


def _resolve(kinds: Sequence[Direction | None], base: Direction) -> list[Direction]:
    """Give a direction to each piece: its own, or its neighbours' if these agree, or else the line's."""
    resolved: list[Direction] = []
    for i, kind in enumerate(kinds):
        before = resolved[-1] if resolved else base
        after = next((each for each in kinds[i:] if each), base)
        resolved.append(kind or (before if before == after else base))
    return resolved
