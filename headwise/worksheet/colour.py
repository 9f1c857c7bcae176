"""Defines the colours of weights and of inputs, the same in workbooks, on pages and in the terminal."""

from __future__ import annotations

# From white to a strong orange, on which black text is still readable: a spreadsheet cannot make the text white.
STOPS = ((0xFF, 0xFF, 0xFF), (0xFD, 0xD8, 0x9B), (0xF0, 0x7F, 0x3C))
GIVEN = "1D4ED8"  # the text colour of numbers that the reader may change
GIVEN_GROUND = "EEF4FF"
FAINT = "6B6773"
HEAD = "F1F0F4"
FORBIDDEN_GROUND = "E4E3E7"


def weight_colour(weight: float) -> str:
    """Return the colour of a weight from 0 to 1, such as "f07f3c" for a weight of 1."""
    at = min(max(weight, 0.0), 1.0) * (len(STOPS) - 1)
    low = min(int(at), len(STOPS) - 2)
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(STOPS[low], STOPS[low + 1], strict=True))
    return "".join(f"{channel:02x}" for channel in mixed)


def stops() -> tuple[str, ...]:
    """Return the colours of the weights 0, ½ and 1, such as "FFFFFF" for 0."""
    return tuple("".join(f"{channel:02X}" for channel in stop) for stop in STOPS)
