"""The order on a line of pieces of text that read from right to left, or of both kinds.

A piece, drawn by itself, is ordered by matplotlib; what is left to do is the order of the pieces. This is the
bidirectional algorithm of Unicode (UAX 9) so far as lines of tokens need it: one level of embedding.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from typing import Literal

Direction = Literal["L", "R"]


def direction_of(texts: Sequence[str]) -> Direction:
    """That of most of the pieces that have one."""
    found = [_strong(text) for text in texts]
    return "R" if found.count("R") > found.count("L") else "L"


def arrange(texts: Sequence[str], base: Direction) -> list[tuple[int, Direction]]:
    """The pieces of one line from left to right: (place in `texts`, direction)."""
    resolved = _resolve([_strong(text) for text in texts], base)
    runs = [list(run) for _, run in itertools.groupby(range(len(texts)), key=resolved.__getitem__)]
    if base == "R":
        runs.reverse()
    return [(i, resolved[i]) for run in runs for i in (run[::-1] if resolved[run[0]] == "R" else run)]


def joins(text: str, following: str) -> bool:
    """Whether two letters that meet may be one stroke, as Arabic letters are."""
    return all(unicodedata.bidirectional(character) == "AL" for character in (text[-1:], following[:1]) if character)


def _strong(text: str) -> Direction | None:
    """The direction of a piece; None for spaces and punctuation. Numbers read from left to right."""
    kinds = {unicodedata.bidirectional(character) for character in text}
    if kinds & {"R", "AL"}:
        return "R"
    return "L" if kinds & {"L", "EN", "AN"} else None


def _resolve(kinds: Sequence[Direction | None], base: Direction) -> list[Direction]:
    """Those without a direction have that of both neighbours, or else that of the line."""
    resolved: list[Direction] = []
    for i, kind in enumerate(kinds):
        before = resolved[-1] if resolved else base
        after = next((each for each in kinds[i:] if each), base)
        resolved.append(kind or (before if before == after else base))
    return resolved
