"""Texts out of somebody's code, made safe to print."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """A text without what would steer a terminal: control characters, and those that turn the direction of writing."""
    return "".join(
        x if x in "\n\t" or unicodedata.category(x) not in _STEERING else "\N{REPLACEMENT CHARACTER}" for x in text
    ).expandtabs(4)


_STEERING = ("Cc", "Cf", "Cs")
