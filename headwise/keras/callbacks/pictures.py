"""Pictures of each head's attention during the training of a Keras model."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from headwise.keras.callbacks.watching import Watching
from headwise.nn import options
from headwise.records import AttentionRecord

GAP = 2  # the number of pixels between heads
ACROSS = 8  # the number of heads in a row


class AttentionPictures(Watching):
    """Write pictures of the attention weights of each layer on a few examples to TensorBoard after each epoch.

        callbacks.AttentionPictures(x[:2], "logs", examples=2)

        attention/encoder.attention/weights/example_0     all heads of the layer, eight in a row

    Rows are queries, columns are keys. Black is the head's largest weight, white is 0, on a square-root scale, so that
    small weights are visible. If a matrix is larger than the picture, each pixel is the largest weight of a block.

    Args:
        x: examples, as the model takes them: an array, or a list or dict of arrays. They are one batch.
        log_dir: the folder of the event file.
        examples: the number of examples to draw; the first ones are drawn.
        size: the approximate side of the picture of one head, in pixels.
        every: write after every n-th epoch.
        only: the layers to draw: numbers, paths or patterns, as for `headwise.watch`. None = all layers.
        prefix: the first part of the names in TensorBoard.

    Raises:
        ArgumentError, DtypeError: an invalid option; the message names it.
    """

    def __init__(
        self,
        x: Any,
        log_dir: str | os.PathLike[str],
        *,
        examples: int = 1,
        size: int = 128,
        every: int = 1,
        only: Any = None,
        prefix: str = "attention",
    ) -> None:
        super().__init__(x, log_dir, every=every, only=only, prefix=prefix)
        self.examples, self.size = options.whole("examples", examples), options.whole("size", size, 8)

    def log(self, step: int) -> None:
        images: dict[str, np.ndarray] = {}
        for site, record in self.records():
            call = f"/call_{site.call}" if site.call else ""
            pictures = _pictures(record, self.examples, self.size)
            images |= {f"{site.name}/weights{call}/example_{i}": each for i, each in enumerate(pictures)}
        self.write(step, images=images)


def _pictures(record: AttentionRecord, examples: int, size: int) -> list[np.ndarray]:
    """Draw a picture [h, w] of the weights for each of the first `examples` examples, with its heads side by side."""
    weights = record.pooled(size, how="max")[:examples].cpu().double().numpy()  # [B, H, h, w]
    top = weights.max(axis=(2, 3), keepdims=True, initial=0.0)
    shades = np.rint(255 * (1 - np.sqrt(weights / np.where(top > 0, top, 1.0)))).astype(np.uint8)
    down, across = (max(1, size // count) for count in shades.shape[2:])
    return [_beside(example.repeat(down, axis=1).repeat(across, axis=2)) for example in shades]


def _beside(heads: np.ndarray) -> np.ndarray:
    """Join the pictures of heads [H, h, w] to one picture: rows of eight heads, on white."""
    count, height, width = heads.shape
    columns = min(count, ACROSS)
    lines = -(-count // columns)
    picture = np.full((lines * (height + GAP) - GAP, columns * (width + GAP) - GAP), 255, np.uint8)
    for head, pixels in enumerate(heads):
        y, x = head // columns * (height + GAP), head % columns * (width + GAP)
        picture[y : y + height, x : x + width] = pixels
    return picture
