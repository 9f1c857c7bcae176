"""Parses the option --layers: numbers and ranges such as 0,2-4."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.errors import ArgumentError

LayerRange = tuple[int, int]  # first and last, both included


def parse_layers(given: str | None) -> list[LayerRange] | None:
    """Parse the ranges in a text: `0,2-4` is [(0, 0), (2, 4)]; None = all layers. Raises `ArgumentError`."""
    if given is None:
        return None
    ranges = []
    for part in given.split(","):
        first, _, last = (number.strip() for number in part.partition("-"))
        last = last if "-" in part else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise ArgumentError(
                "--layers: expected numbers and ranges such as 0,2-4. Received: --layers={given!r}", given=given
            )
        ranges.append((int(first), int(last)))
    return ranges


def choose_layers(ranges: Sequence[LayerRange] | None, num_layers: int) -> list[int]:
    if ranges is None:
        return list(range(num_layers))
    if beyond := [last for _, last in ranges if last >= num_layers]:
        raise ArgumentError(
            "--layers: expected layers from 0 to {num_layers} for this model. Received: layer {beyond}",
            num_layers=num_layers - 1,
            beyond=beyond[0],
        )
    return sorted({layer for first, last in ranges for layer in range(first, last + 1)})
