"""Parses positions of tokens on the command line: --row and --col, --rows and --cols."""

from __future__ import annotations

import re

from headwise.errors import ArgumentError


def parse_place(given: str) -> int | str:
    """Parse a position: `9` is a number; other text is the text of a token, which `headwise.text.places` finds."""
    return int(given) if re.fullmatch(r"-?\d+", given) else given


def parse_places(given: str, option: str) -> slice | list[int | str]:
    """Parse several positions: `0:20` is a slice, `3,5,9` and `it,animal` are lists. Raises `ArgumentError`."""
    if found := re.fullmatch(r"(\d*):(\d*)", given):
        return slice(*(int(part) if part else None for part in found.groups()))
    parts = [part.strip() for part in given.split(",")]
    if not all(parts):
        raise ArgumentError(
            "{option}: expected a range such as 0:20, or positions or tokens such as 3,5,9 or it,animal. "
            "Received: {option}={given!r}",
            option=option,
            given=given,
        )
    return [parse_place(part) for part in parts]
