"""Makes the figure itself: without pyplot, laid out in inches, and written to a file that then replaces the target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwise.errors import ArgumentError
from headwise.extras import need
from headwise.files import writing
from headwise.plot.colour import FAINT, INK, MASKED, MASKED_LINES, PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PatchCollection
    from matplotlib.figure import Figure

    from headwise.plot.fonts import Letters

SUFFIXES = (".png", ".svg", ".pdf")
DPI = 300  # of files
COLUMN, PAGE, MOST_HEIGHT = 3.3, 7.0, 8.5  # inches: the widths of a text column and of a page, and the height of a page

# Sizes of letters, in points.
TITLE, TITLES, LABEL, NOTE = 8.5, 7.5, 7.0, 6.5
SMALLEST = 5.0
LINE = 1.25  # line spacing, as a multiple of the font size
# Inches. For the colour bar: its width, its shortest length, and the space for its numbers and name.
EDGE, GAP = 0.06, 0.08
BAR, LEAST_BAR = 0.1, 0.95
BAR_NAMES = {"linear": 0.5, "root": 0.5, "log": 0.66}

# Settings that a user's style must not change while a figure is made.
_STYLE: dict[Any, Any] = {
    "axes.grid": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": FAINT,
    "axes.unicode_minus": False,
    "grid.linewidth": 0.4,
    "hatch.linewidth": 0.5,
    "image.composite_image": False,
    "text.usetex": False,
    "text.parse_math": False,
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Return the context in which a figure is made. Raises ArgumentError if matplotlib is not installed."""
    need("a figure", "plot")
    from matplotlib import rc_context

    with rc_context(_STYLE):
        yield


def blank(width: float, height: float) -> Figure:
    """Make an empty figure of this size in inches."""
    from headwise.plot.picture import Picture

    return Picture(figsize=(width, height), dpi=200, facecolor=PAPER, edgecolor=PAPER, layout=None)


def frame(
    letters: Letters,
    title: str,
    notes: Sequence[str],
    left: float,
    above: float,
    size: tuple[float, float],
    bar_names: float,
    width: float = 0.0,
) -> tuple[Figure, Axes, Axes]:
    """Make a figure with a title above axes and notes below; return (figure, axes, axes for a colour bar).

    `size`: the size of the axes. `left`, `above`: the space from the axes to the figure's edge and to the title.
    `bar_names`: the space for the colour bar's numbers and name. `width`: the smallest width of the figure.
    """
    width = max(width, left + size[0] + GAP + BAR + bar_names)
    titles = letters.wrap(title, TITLE, width - 2 * EDGE, letters.bold)
    notes = [line for note in notes for line in letters.wrap(note, NOTE, width - left - EDGE)]
    top = EDGE + len(titles) * TITLE * LINE / 72 + above
    bottom = top + size[1]
    figure = blank(width, bottom + GAP + len(notes) * NOTE * LINE / 72 + EDGE)
    axes = place_axes(figure, left, top, *size)
    tall = min(max(size[1], LEAST_BAR), bottom - EDGE)
    bar = place_axes(figure, left + size[0] + GAP, bottom - tall, BAR, tall)
    write_lines(figure, letters, titles, EDGE, EDGE, TITLE, weight=letters.bold)
    write_notes(figure, letters, notes, left, bottom + GAP)
    return figure, axes, bar


def place_axes(figure: Figure, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
    """Make axes at `left` and `top` inches from the upper left corner."""
    w, h = figure.get_size_inches()
    axes: Axes = figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h), **options)
    return axes


def write_lines(
    figure: Figure, letters: Letters, lines: Sequence[str], left: float, top: float, size: float, **options: Any
) -> None:
    """Write lines of text below one another, from `top` inches down. `Letters.of` must have prepared them."""
    w, h = figure.get_size_inches()
    options = {"color": INK, "weight": "normal", "va": "center_baseline", "parse_math": False, **options}
    font = letters.properties(size, options.pop("weight"))
    for number, line in enumerate(lines):
        y = top + (number + 0.5) * size * LINE / 72
        figure.text(left / w, 1 - y / h, line, fontproperties=font, **options)


Box = tuple[float, float, float, float]  # x, y, width, height


def add_boxes(axes: Axes, boxes: Sequence[Box], **look: Any) -> PatchCollection:
    """Draw rectangles with the same look; return the collection."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    collection = PatchCollection([Rectangle(box[:2], *box[2:]) for box in boxes], **{"linewidth": 0, **look})
    axes.add_collection(collection, autolim=False)
    return collection


def add_hatched(axes: Axes, boxes: Sequence[Box], zorder: float = 1) -> None:
    """Draw hatched rectangles for masked cells."""
    # Background and lines separately: PDF viewers show seams in a tiled background.
    for look in _HATCHED:
        add_boxes(axes, boxes, zorder=zorder, **look)


_HATCHED: tuple[dict[str, Any], ...] = (
    {"facecolor": MASKED, "edgecolor": "none"},
    {"facecolor": "none", "edgecolor": MASKED_LINES, "hatch": "/////"},
)


def write_notes(figure: Figure, letters: Letters, notes: Sequence[str], left: float, top: float) -> None:
    """Write notes below the drawing; MASKED_NOTE gets a hatched sample."""
    from matplotlib.patches import Rectangle

    w, h = figure.get_size_inches()
    for number, note in enumerate(notes):
        y, x = top + number * NOTE * LINE / 72, left
        if note == MASKED_NOTE:
            tall, wide = 0.09, 0.16
            below = y + (NOTE * LINE / 72 + tall) / 2
            for look in _HATCHED:
                box = Rectangle((x / w, 1 - below / h), wide / w, tall / h, transform=figure.transFigure, **look)
                box.set_linewidth(0)
                figure.add_artist(box)
            x += wide + 0.06
        write_lines(figure, letters, [note], x, y, NOTE, color=FAINT)


MASKED_NOTE = "masked, may not be attended to"


def add_bar(
    figure: Figure,
    letters: Letters,
    shown: ScalarMappable,
    axes: Axes,
    orientation: Literal["vertical", "horizontal"] = "vertical",
) -> None:
    """Draw the colour bar, in separate axes."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    log = isinstance(shown.norm, LogNorm)
    axes.clear()
    bar = figure.colorbar(shown, cax=axes, orientation=orientation)
    bar.outline.set_linewidth(0.4)
    bar.locator = LogLocator(numticks=6) if log else MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    bar.minorticks_off()
    bar.formatter = FuncFormatter(lambda x, _: f"{x:.6g}")
    bar.update_ticks()
    bar.set_label("attention weight", fontproperties=letters.properties(TITLES), color=INK)
    axes.tick_params(labelsize=NOTE, labelcolor=INK, color=FAINT, length=2, width=0.4, pad=1.5)
    for each in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        each.set_fontfamily(letters.families)


# --- Files ------------------------------------------------------------------------------------------------------------


def check_out(out: str | Path | None) -> Path | None:
    """Return the path of the file to write; None = no file. ArgumentError if its suffix is not supported."""
    if out is None:
        return None
    path = Path(out)
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"out: expected a file name that ends in {', '.join(SUFFIXES)}. Received: out={path}")
    return path


def write(figure: Figure, path: Path | None, letters: Letters, title: str) -> Figure:
    """Write the figure if `path` is given, and return it. In SVG and PDF, text stays text.

    The same figure gives the same bytes. Raises FileError; `path` is always either the old file or the whole new file.
    """
    if path is None:
        return figure
    from matplotlib import rc_context

    kind = path.suffix.lower()[1:]
    # Journals require Type 42; PostScript outlines are drawn by all viewers only as Type 3.
    pdf = 42 if letters.all_truetype else 3
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "headwise",
        "pdf.fonttype": pdf,
        "savefig.bbox": None,
    }
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    with rc_context({**_STYLE, **style}), writing(path) as part, part.open("wb") as file:
        figure.savefig(file, format=kind, dpi=DPI, metadata={"Title": title, **dates}, facecolor="auto")
    return figure
