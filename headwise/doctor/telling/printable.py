"""Text from the user's code, made safe to print."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """The text without characters that control a terminal: control characters and changes of text direction."""
    return "".join(
        x if x in "\n\t" or unicodedata.category(x) not in _STEERING else "\N{REPLACEMENT CHARACTER}" for x in text
    ).expandtabs(4)


_STEERING = ("Cc", "Cf", "Cs")
