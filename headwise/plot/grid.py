"""`heads`: every head of every layer as a small heat map; rows are layers, columns are heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from headwise.errors import ArgumentError, DtypeError
from headwise.masks import Extent
from headwise.plot.colour import FAINT, GROUND, INK, Scale, check_look, choose_norm, colours, scale_note
from headwise.plot.fonts import Letters
from headwise.plot.paper import (
    BAR,
    BAR_NAMES,
    COLUMN,
    DPI,
    EDGE,
    GAP,
    LABEL,
    LINE,
    MASKED_NOTE,
    MOST_HEIGHT,
    PAGE,
    TITLES,
    Box,
    add_bar,
    add_boxes,
    add_hatched,
    check_out,
    drawing,
    frame,
    write,
)
from headwise.plot.subject import check_place
from headwise.plot.weights import Array
from headwise.records import AttentionRecord, Seen
from headwise.records import names as paths
from headwise.records.names import name_of
from headwise.records.seen import Layer
from headwise.records.statistics.pooled import compute_edges

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

CELLS = 64  # most cells per side of a small map
LARGEST_PITCH, LEAST_PITCH = 0.95, 0.12  # inches from one map to the next
SIDE = 0.86  # side of a map, as a share of the pitch


@dataclass(frozen=True)
class Row:
    """The small maps of one layer, one for each head."""

    name: str
    key_heads: int
    values: Array  # [H, h, w], 0 where the mask forbids
    masked: Array  # bool [1 | H, h, w]: cells in which every weight is masked


def heads(
    what: Seen | AttentionRecord,
    *,
    layers: Layer | slice | Sequence[Layer] | None = None,
    example: int = 0,
    scale: Scale = "root",
    cmap: str | Colormap = "ember",
    vmax: float | None = None,
    title: str = "",
    width: float | None = None,
    out: str | Path | None = None,
) -> Figure:
    """Draw all heads of all layers as small maps: one row per layer, one column per head.

        headwise.plot.heads(seen, out="heads.pdf")
        headwise.plot.heads(seen, layers=slice(0, 4), width=3.3)

    Each cell of a map is the largest of the weights that it represents, and all maps share one colour scale. Heads that
    share keys and values (grouped-query attention) have a common background. Masked cells are hatched. Memory is linear
    in the length.

    Args:
        what: a `Seen`, or one record.
        layers: the layers to draw: a number, a name or pattern, a list of these, or a slice; None = all.
        example, scale, cmap, vmax, title, width, out: as in `heatmap`.

    Raises:
        ArgumentError, RecordError, FileError: see `heatmap`.
    """
    path = check_out(out)
    check_look(scale, vmax, width)
    records = _records(what, layers)
    for record in records:
        check_place("example", example, record.shape[0])
    names = _names(what, records)
    with drawing():
        legend = _legend(what, records)
        letters = Letters([*names, *legend, title])
        title = letters.of(title)
        most = max(record.shape[1] for record in records)
        left = EDGE + TITLES * LINE / 72 + max(letters.width(letters.of(name), LABEL) for name in names) + 2 * GAP
        around = left + GAP + BAR + BAR_NAMES[scale]
        total = width or min(PAGE, max(COLUMN, around + most * LARGEST_PITCH))
        pitch = min((total - around) / most, LARGEST_PITCH, MOST_HEIGHT / len(records))
        if pitch < LEAST_PITCH:
            raise ArgumentError(
                f"too many maps: {len(records)} × {most} heads do not fit into {total:g} × {MOST_HEIGHT:g} inches. "
                "Choose fewer layers or a larger width"
            )
        size = max(1, min(CELLS, int(pitch * SIDE * DPI / 2)))
        rows = [_row(letters.of(name), record, example, size) for name, record in zip(names, records, strict=True)]
        notes = [*_notes(rows, records, size), *scale_note(scale), *map(letters.of, legend)]
        above = (TITLES + LABEL) * LINE / 72 + GAP
        figure, axes, bar = frame(
            *(letters, title, notes, left, above, (most * pitch, len(rows) * pitch), BAR_NAMES[scale], width or 0.0)
        )
        top = vmax or max(float(row.values.max(initial=0.0)) for row in rows)
        _draw_maps(axes, rows, choose_norm(scale, top), colours(cmap))
        _name_maps(axes, letters, rows, most, pitch)
        add_bar(figure, letters, axes.images[0], bar)
        return write(figure, path, letters, title)


# --- Drawn content ----------------------------------------------------------------------------------------------------


def _records(what: Seen | AttentionRecord, layers: Layer | slice | Sequence[Layer] | None) -> list[AttentionRecord]:
    if isinstance(what, AttentionRecord):
        if layers is not None:
            raise ArgumentError(
                "layers: expected a Seen. Received: a record, which has one layer only. Leave layers out"
            )
        records = [what]
    elif not isinstance(what, Seen):
        raise DtypeError(f"plot: expected a Seen or an AttentionRecord. Received: {type(what).__name__}")
    elif layers is None:
        records = what.records
    elif isinstance(layers, slice):
        records = what[layers].records
    else:
        records = what.only(*([layers] if isinstance(layers, (int, str)) else layers)).records
    records = [record for record in records if 0 not in record.shape]
    if not records:
        raise ArgumentError("layers: expected at least one recorded layer. Received: none")
    return records


def _names(what: Seen | AttentionRecord, records: Sequence[AttentionRecord]) -> list[str]:
    """Return the numbers of the layers as text, with the number of the call if a layer was called several times."""
    if isinstance(what, AttentionRecord):
        return [""]
    layers = what.layers
    several = len(what) > len(layers)
    return [
        str(layers.index(name_of(record))) + (f" · call {record.site.call}" if several and record.site else "")
        for record in records
    ]


def _legend(what: Seen | AttentionRecord, records: Sequence[AttentionRecord]) -> list[str]:
    """Return lines that say which layer each number in the figure is: "layer …" with its name."""
    if isinstance(what, AttentionRecord):
        return []
    named = dict.fromkeys(name_of(record) for record in records)
    return [f"layer {line}" for line in paths.legend([(what.layers.index(name), name) for name in named])]


def _row(name: str, record: AttentionRecord, example: int, size: int) -> Row:
    with torch.no_grad():
        values = record.pooled(size, "max")[example].cpu().numpy()
    masked = np.zeros((1, *values.shape[1:]), dtype=bool)
    if record.mask is not None:
        (q_lo, q_hi), (k_lo, k_hi) = (
            map(torch.from_numpy, compute_edges(length, count))
            for length, count in zip(record.shape[2:], values.shape[1:], strict=True)
        )
        codes = record.mask.rectangles(q_lo[:, None], q_hi[:, None], k_lo[None], k_hi[None])
        masked = (codes == Extent.NONE)[example if codes.shape[0] > 1 else 0].cpu().numpy()
    return Row(name, record.k.shape[1], values, masked)


def _notes(rows: Sequence[Row], records: Sequence[AttentionRecord], size: int) -> list[str]:
    notes = [MASKED_NOTE] if any(row.masked.any() for row in rows) else []
    if any(max(record.shape[2:]) > size for record in records):
        notes.append(f"maps of at most {size} × {size} cells, each the largest of its weights")
    if any(row.key_heads < len(row.values) for row in rows):
        notes.append("common background: heads that share keys and values")
    return notes


# --- Drawing: one unit per map, with (head, layer) coordinates --------------------------------------------------------


def _draw_maps(axes: Axes, rows: Sequence[Row], norm: Normalize, cmap: Colormap) -> None:
    half = SIDE / 2
    grounds: list[Box] = []
    outlines: list[Box] = []
    hatched: list[Box] = []
    for y, row in enumerate(rows):
        shared = len(row.values) // row.key_heads
        if shared > 1:
            grounds += [(x - 0.46, y - 0.46, shared - 0.08, 0.92) for x in range(0, len(row.values), shared)]
        for x, values in enumerate(row.values):
            masked = row.masked[x if len(row.masked) > 1 else 0]
            outlines.append((x - half, y - half, SIDE, SIDE))
            hatched += [outlines[-1]] if masked.any() else []
            axes.imshow(
                np.ma.masked_where(masked, values),
                cmap=cmap,
                norm=norm,
                extent=(x - half, x + half, y + half, y - half),
                interpolation="nearest",
                aspect="auto",
                zorder=2,
            )
    add_boxes(axes, grounds, facecolor=GROUND, zorder=0)
    add_hatched(axes, hatched)
    add_boxes(axes, outlines, facecolor="none", edgecolor=FAINT, linewidth=0.4, zorder=3)


def _name_maps(axes: Axes, letters: Letters, rows: Sequence[Row], most: int, pitch: float) -> None:
    axes.set(xlim=(-0.5, most - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.spines[:].set_visible(False)
    step = next(n for n in (1, 2, 5, 10, 20, 50, 100) if n * pitch >= letters.width(str(most), LABEL) + 3 / 72)
    axes.xaxis.tick_top()
    axes.set_xticks(range(0, most, step), labels=[str(head) for head in range(0, most, step)])
    step = 1 if pitch * 72 >= LABEL else 2
    axes.set_yticks(range(0, len(rows), step), labels=[row.name for row in rows[::step]])
    axes.tick_params(length=0, pad=1, labelcolor=INK)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set(fontproperties=letters.properties(LABEL), parse_math=False)
    axes.xaxis.set_label_position("top")
    font = letters.properties(TITLES)
    axes.set_xlabel("head", fontproperties=font, color=INK, labelpad=2)
    if any(row.name for row in rows):
        axes.set_ylabel("layer", fontproperties=font, color=INK, labelpad=3)
