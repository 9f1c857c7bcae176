"""Attention as people write it: each style with its truth, and what the watch makes of it.

`python -m tests.capture.styles [part of a name]` prints the table. expected.txt has the styles that are not exact, or
that are no attention and yet not left alone; `--write` writes it, where something got better.
"""

from __future__ import annotations

from pathlib import Path

from tests.capture.styles import code, none, pieces, products, running, scores, softmaxes, weights
from tests.capture.styles.outcome import OUTCOMES, Outcome, outcome
from tests.capture.styles.style import STYLES, Style

GROUPS = (products, scores, softmaxes, weights, pieces, code, running, none)
EXPECTED = Path(__file__).with_name("expected.txt")


def expected() -> dict[str, tuple[str, str]]:
    """Style -> (its outcome today, the first words of the reason if it is refused), of those that are not exact."""
    lines = (line.split(": ", 2) for line in EXPECTED.read_text().splitlines())
    return {name: (kind, "".join(reason)) for kind, name, *reason in lines}


__all__ = ["EXPECTED", "GROUPS", "OUTCOMES", "STYLES", "Outcome", "Style", "expected", "outcome"]
