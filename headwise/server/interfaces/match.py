"""The interface of match: an image and a text -> how well they match; one of them -> its best matches."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headwise.errors import ArgumentError, DtypeError
from headwise.server.interface import Column, Description, Row
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.server.interfaces.texts import texts_of_row
from headwise.tasks.match import BEST, Match
from headwise.tasks.rows.gallery import Question
from headwise.tasks.rows.pictures import read_picture
from headwise.viewer import Input, inputs_of

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 50_000_000  # limit before scaling: a file of a few kilobytes may decode to gigabytes


class Asked(NamedTuple):
    """An image, a text, or both, and their tokens and patches."""

    question: Question
    size: int


class MatchInterface(TaskInterface[Match, Asked]):
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

    def parse(self, row: Row) -> Asked:
        image, text = row.get("image"), row.get("text")
        if image is None and text is None:
            raise ArgumentError("expected an image, a text, or both. Received: neither of them")
        pixels, size = None, 0
        if image is not None:
            options = self.task.options
            pixels = read_picture(_opened(image), options.image_size, options.channels)
            size = self.task.model.config.grid**2
        if text is None:
            return Asked(Question(pixels=pixels), size)
        words = texts_of_row(row, ["text"], self.task.subwords)
        question = Question(pixels=pixels, text=words.texts[0], ids=self.task.ids(words.pieces[0]))
        return Asked(question, words.tokens + size)

    def tokens(self, asked: Asked) -> int:
        return asked.size

    def run(self, asked: Sequence[Asked]) -> list[Row]:
        return [_row(each) for each in self.task.predict([each.question for each in asked])]

    def look(self, asked: Asked) -> list[Input]:
        return inputs_of(self.task.look([asked.question]), images=self.task.pictures([asked.question]))


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
