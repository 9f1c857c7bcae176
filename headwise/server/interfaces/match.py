"""The interface of match: an image and a text -> how well they match; one of them -> its best matches."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.errors import ArgumentError, DtypeError
from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces.cells import text_of
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.tasks.match import BEST, Match
from headwise.tasks.rows.pictures import Pixels, read_picture
from headwise.viewer import Input, inputs_of

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 50_000_000  # limit before scaling: a file of a few kilobytes may decode to gigabytes


@dataclass(frozen=True)
class Pair:
    """An image, a text, or both."""

    pixels: Pixels | None
    text: str | None

    @property
    def given(self) -> dict[str, Any]:
        """The keyword arguments of the task."""
        parts = {"image": self.pixels, "text": self.text}
        return {name: part for name, part in parts.items() if part is not None}


class MatchInterface(TaskInterface[Match, Pair]):
    """`image`, `text` or both -> `match`; for both `similarity`, for one `best` and `matches`."""

    def describe(self) -> Description:
        return Description(
            task=self.task.name,
            platform=self.platform,
            inputs=(
                Column("image", "BYTES", (), f"an image file: {', '.join(FORMATS)}", optional=True, binary=True),
                Column("text", "BYTES", (), "a description of an image", optional=True),
            ),
            outputs=(
                Column("match", "FP32", (), "the probability that the pair, or the best match, belongs together"),
                Column("similarity", "FP32", (), "for a pair: cosine similarity of the two vectors", optional=True),
                Column("best", "BYTES", (-1,), f"for a single input: names of the {BEST} best matches", optional=True),
                Column("matches", "FP32", (-1,), "for a single input: the score of each match", optional=True),
            ),
            explains=self.has_records,
            example={"image": self._example(), "text": next(iter(self.task.gallery.texts), "a picture")},
        )

    def _example(self) -> bytes:
        """A grey image of the size that the model reads."""
        from PIL import Image

        size, written = self.task.options.image_size, io.BytesIO()
        Image.new("L", (size, size), 128).save(written, "PNG")
        return written.getvalue()

    def read(self, row: Row) -> Pair:
        image, text = row.get("image"), row.get("text")
        if image is None and text is None:
            raise ArgumentError("expected an image, a text, or both. Received: neither of them")
        pixels = None
        if image is not None:
            options = self.task.options
            pixels = read_picture(_opened(image), options.image_size, options.channels)
        return Pair(pixels, None if text is None else text_of(row, "text"))

    def size(self, asked: Pair) -> int:
        words = 0 if asked.text is None else 2 + len(self.task.subwords.pieces([asked.text])[0].ids)
        return words + (0 if asked.pixels is None else self.task.model.config.grid**2)

    def run(self, asked: Sequence[Pair]) -> list[Row]:
        return [_row(each) for each in self.task.predict([each.given for each in asked])]

    def look(self, asked: Pair) -> list[Input]:
        return inputs_of(self.task.look([asked.given]), images=self.task.pictures([asked.given]))


def _row(found: dict[str, Any]) -> Row:
    """The task's answer, with numbered values ("text", "text 2", …) collected into arrays."""
    if "similarity" in found:
        return found
    (wants,) = {"image", "text"} & found.keys()
    numbers = ["", *(f" {rank}" for rank in range(2, BEST + 1))]
    ranks = [number for number in numbers if f"{wants}{number}" in found]
    return {
        "match": found["match"],
        "best": np.array([found[f"{wants}{rank}"] for rank in ranks], dtype=object),
        "matches": np.array([found[f"match{rank}"] for rank in ranks], dtype=np.float32),
    }


def _opened(data: Any) -> Any:
    """Decode a file's bytes into a PIL image. Raises DtypeError, ArgumentError."""
    from PIL import Image

    if not isinstance(data, bytes):
        raise DtypeError(f"image: expected the bytes of a file. Received: {type(data).__name__}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning about its size, which is checked here
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = opened.size
            if width * height <= MOST_PIXELS:
                opened.load()
                return opened
    except Exception as cause:  # Pillow raises many kinds of errors for damaged files
        raise ArgumentError(
            f"image: expected a file of one of {', '.join(FORMATS)}, undamaged. Received: {len(data)} bytes that "
            "Pillow cannot decode"
        ) from cause
    raise ArgumentError(
        f"image: expected at most {MOST_PIXELS:,} pixels. Received: {width:,} × {height:,}. Make the image smaller"
    )
