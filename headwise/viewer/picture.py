"""Draws a still picture of every head, for where no script runs: a web site, a mail, a saved notebook."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwise.viewer.answers import Answers, Numbers, Question
from headwise.viewer.images import picture as image_of
from headwise.viewer.inputs import Input, Layer

WIDTH = 700  # pixels; more if there are too many heads
SIDES = 8, 96  # smallest and largest side of one head, in pixels
GAP = 3
ACROSS = 8  # largest number of heads in a row, if there is only one layer
LAYERS = 100  # largest number of layers shown

# For long inputs only some rows are computed: about this many cells per picture.
CELLS = 2**25

# The page's colours on paper, from weight 0 to the head's largest, and the colour of masked cells. Few steps make the
# file a third as large.
STEPS = 24
RAMP = (252, 250, 241), (255, 195, 129), (255, 127, 90), (218, 74, 114), (149, 56, 127), (78, 49, 100), (32, 33, 39)
MASKED = 230, 232, 235

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Picture:
    """A picture (PNG, as a data: URI) and its size, and a sentence that describes it."""

    uri: str  # a PNG, as a data: URI
    width: int
    height: int
    about: str


def overview(shown: Input, chosen: Sequence[int] | None = None) -> Picture:
    """Draw all heads of an input, or the chosen heads of its only layer, as small maps.

    Each layer is a row; the heads of an only layer may fill several rows.
    """
    layers = [layer for stack in shown.stacks for layer in stack.layers]
    heads = max(layer.record.shape[1] for layer in layers) if chosen is None else len(chosen)
    across = heads if len(layers) > 1 else math.ceil(heads / math.ceil(heads / ACROSS))
    side = int(np.clip(WIDTH // across - GAP, *SIDES))
    rows = CELLS // sum(layer.record.shape[1] * layer.record.shape[3] for layer in layers)
    lines: list[list[Pixels]] = []
    for layer in layers[:LAYERS]:
        maps = _maps(layer, side, rows, range(layer.record.shape[1]) if chosen is None else chosen)
        lines += [maps[start : start + across] for start in range(0, len(maps), across)]
    step = side + GAP
    pixels = np.full((len(lines) * step - GAP, across * step - GAP, 3), 255, np.uint8)
    for y, line in enumerate(lines):
        for x, each in enumerate(line):
            pixels[y * step : y * step + side, x * step : x * step + side] = each
    return Picture(image_of(pixels).uri, pixels.shape[1], pixels.shape[0], _about(len(layers), heads))


def _about(layers: int, heads: int) -> str:
    of = f"{heads} head{'s' * (heads > 1)}"
    if layers > 1:
        of = f"{layers} layers × {of}, one row per layer{f' (the first {LAYERS})' * (layers > LAYERS)}"
    return f"Attention weights of {of}. Rows are queries, columns are keys; darker means larger."


def _maps(layer: Layer, side: int, rows: int, heads: Sequence[int]) -> list[Pixels]:
    """Draw a picture of each head's weights, pixels [side, side, 3], from at most `rows` rows, evenly spread."""
    _, _, q_len, k_len = layer.record.shape
    answers = Answers(layer.record, layer.example)
    every, height, width = q_len <= rows, min(side, q_len), min(side, k_len)
    if not every:
        height = min(height, max(4, rows))
    maps = []
    for head in heads:
        question = Question(head, (0, q_len), (0, k_len), height, width, "max" if every else "sample")
        maps.append(_coloured(answers.tile(question).now(), side))
    return maps


def _coloured(weights: Numbers, side: int) -> Pixels:
    """Colour weights [h, w] (NaN = masked) as pixels [side, side, 3]; a square root makes small weights visible."""
    top = np.nanmax(weights, initial=0.0) or 1.0
    step = np.rint(np.sqrt(np.nan_to_num(weights) / top) * (STEPS - 1)).astype(int)
    colours = _ramp()[np.where(np.isnan(weights), STEPS, step)]
    down, right = (np.arange(side) * count // side for count in weights.shape)
    found: Pixels = colours[down][:, right]
    return found


@functools.cache
def _ramp() -> Pixels:
    """Return the colours of the steps from weight 0 to the largest weight, then the colour of masked cells."""
    places, points = np.linspace(0, len(RAMP) - 1, STEPS), np.arange(len(RAMP))
    channels = [np.interp(places, points, channel) for channel in zip(*RAMP, strict=True)]
    return np.vstack([np.stack(channels, axis=1), MASKED]).round().astype(np.uint8)
