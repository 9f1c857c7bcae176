"""Colours read the same to every eye."""

from __future__ import annotations

import numpy as np

from headwise.plot.colour import colours, ink_on


def lightness(rgb: np.ndarray) -> np.ndarray:
    """CIE L*, worked out here by itself."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(y > 216 / 24389, 116 * np.cbrt(y) - 16, y * 24389 / 27)


def test_ember_darkens_evenly() -> None:
    steps = lightness(colours("ember")(np.linspace(0, 1, 64))[:, :3])
    assert steps[0] > 97
    assert steps[-1] < 20
    falls = -np.diff(steps)
    assert (falls > 0).all()
    assert falls.max() < 2.5 * falls.mean()


def test_what_is_masked_stays_clear() -> None:
    for name in ("ember", "viridis", colours("cividis")):
        assert colours(name)(np.ma.masked_all(1))[0, 3] == 0


def test_ink_is_black_or_white() -> None:
    assert ink_on("#ffffff") == ink_on("#ff8800") == "#000000"
    assert ink_on("#000000") == ink_on("#7a0000") == "#ffffff"
