"""Maps weights to colours, and finds the ink colour that is readable on them.

"ember" is the colour map of headwise's HTML page: from paper white through orange and red to violet. Its lightness
decreases monotonically, so it also works for colour-blind readers and in greyscale. It is computed in the colour space
OKLCH (https://bottosson.github.io/posts/oklab/).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from headwise.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.colors import Colormap, Normalize

Scale = Literal["linear", "root", "log"]
SCALES = ("linear", "root", "log")
DECADES = 4  # powers of ten below the largest weight on the log scale

INK, FAINT, PAPER = "#15131a", "#6b6773", "#ffffff"
MASKED, MASKED_LINES, HIDDEN, GROUND = "#e4e3e7", "#bcbac3", "#eeeeee", "#bccbe0"


def colours(name: str | Colormap) -> Colormap:
    """Return a colour map by name: "ember", or any of matplotlib's. Masked cells are transparent."""
    import matplotlib
    from matplotlib.colors import Colormap

    if isinstance(name, Colormap):
        chosen = name
    elif name == "ember":
        chosen = _ember()
    elif name in matplotlib.colormaps:
        chosen = matplotlib.colormaps[name]
    else:
        raise ArgumentError(
            'cmap: expected "ember" or a colour map of matplotlib, such as "cividis", "viridis_r", "gray_r". '
            f"Received: cmap={name!r}"
        )
    return chosen.with_extremes(bad=(0, 0, 0, 0))


def choose_norm(scale: Scale, top: float) -> Normalize:
    """Return the normalisation from weights to colours: from 0 to `top`; "log" begins `DECADES` powers of ten below."""
    from matplotlib.colors import LogNorm, Normalize, PowerNorm

    top = top if top > 0 else 1.0
    if scale == "linear":
        return Normalize(0, top)
    if scale == "root":
        return PowerNorm(0.5, 0, top)
    return LogNorm(top / 10**DECADES, top, clip=True)


def check_look(scale: str, vmax: float | None, width: float | None) -> None:
    """Raise ArgumentError for an invalid `scale`, `vmax` or `width` of a figure."""
    if scale not in SCALES:
        raise ArgumentError(f'scale: expected "linear", "root" or "log". Received: scale={scale!r}')
    if vmax is not None and not 0 < vmax < math.inf:
        raise ArgumentError(f"vmax: expected a weight above 0. Received: vmax={vmax!r}")
    if width is not None and not 0 < width <= 100:
        raise ArgumentError(f"width: expected inches, such as 3.3 for a column. Received: width={width!r}")


def scale_note(scale: Scale) -> list[str]:
    """Return a list with a note for the reader if colours are not proportional to weights; else []."""
    notes = {"root": "colours on a square-root scale", "log": "colours on a logarithmic scale"}
    return [notes[scale]] if scale in notes else []


def ink_on(colour: Any) -> str:
    """Return black or white, whichever has more contrast to a colour: WCAG's contrast is then at least 4.58."""
    light = _luminance(colour)
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


def _luminance(colour: Any) -> float:
    from matplotlib.colors import to_rgb

    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(channels, (0.2126, 0.7152, 0.0722)))


@lru_cache(maxsize=1)
def _ember() -> Colormap:
    from matplotlib.colors import ListedColormap

    t = np.linspace(0, 1, 512)
    lightness, chroma = 0.985 - 0.735 * t, 0.012 + 0.17 * np.sin(np.pi * t**0.9)
    return ListedColormap(_rgb(lightness, chroma, np.radians(95 - 175 * t)), name="ember")


def _rgb(lightness: NDArray[Any], chroma: NDArray[Any], hue: NDArray[Any]) -> NDArray[Any]:
    a, b = chroma * np.cos(hue), chroma * np.sin(hue)
    to_lms = np.array(
        [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]]
    )
    to_linear = np.array([[4.0767416621, -3.3077115913, 0.2309699292], [-1.2684380046, 2.6097574011, -0.3413193965],
                          [-0.0041960863, -0.7034186147, 1.707614701]])  # fmt: skip
    linear = (np.stack([lightness, a, b], axis=1) @ to_lms.T) ** 3 @ to_linear.T
    linear = linear.clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
