"""The questions to a `Match` (a text, an image or both), and the gallery: the images and texts it may answer with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from headwise.errors import ArgumentError, CheckpointError, DtypeError, FileError, HeadwiseError
from headwise.files import replacing
from headwise.tasks.options.match import MatchOptions
from headwise.tasks.rows.pictures import Pixels, is_image_path, name_image, read_picture, why_not
from headwise.tasks.rows.sources import Table, open_table
from headwise.tasks.rows.tables import Data, as_texts
from headwise.tasks.text.subwords import Read

FILE = "gallery.safetensors"
QUESTION = "question"  # the column of questions


@dataclass(frozen=True)
class Gallery:
    """Images (names, pixels) and texts of the training data, among which `Match` finds the best for a question."""

    names: tuple[str, ...]
    images: tuple[Pixels, ...]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, images: Mapping[str, Pixels], texts: Sequence[str], most: int) -> Gallery:
        """Make a gallery of the first images and texts, at most `most` of each."""
        return cls(tuple(images)[:most], tuple(images.values())[:most], tuple(texts)[:most])

    def state(self) -> dict[str, list[str]]:
        """Return the data that `load` needs besides the file of pixels: the names of images, and the texts."""
        return {"names": list(self.names), "texts": list(self.texts)}

    def save(self, folder: Path) -> None:
        """Write the pixels to a file in the folder. OSError passes through."""
        if self.images:
            with replacing(folder / FILE) as part:
                part.write_bytes(save({"images": torch.from_numpy(np.stack(self.images))}))

    @classmethod
    def load(cls, folder: Path, state: Mapping[str, list[str]]) -> Gallery:
        """Load a saved gallery. CheckpointError if the file is missing or belongs to another gallery."""
        images: tuple[Pixels, ...] = ()
        if state["names"]:
            try:
                images = tuple(load_file(folder / FILE)["images"].numpy())
            except Exception as cause:  # safetensors has its own error, and it may be another file
                raise CheckpointError(f"cannot read {folder / FILE}, the images of this run: {cause}") from cause
        if len(images) != len(state["names"]):
            raise CheckpointError(f"{folder / FILE}: expected {len(state['names'])} images. Received: {len(images)}")
        return cls(tuple(state["names"]), images, tuple(state["texts"]))


@dataclass(frozen=True)
class Question:
    """A question to a `Match`: an image, a text, or both."""

    name: str | None = None
    pixels: Pixels | None = None
    text: str | None = None
    read: Read | None = None  # the text's tokens, if they are known

    @property
    def wants(self) -> str:
        """The kind of the answer: an "image" for a text, a "text" for an image; for both the score of the "pair"."""
        if self.pixels is None:
            return "image"
        return "text" if self.text is None else "pair"


def questions(inputs: Any, options: MatchOptions) -> list[Question]:
    """Turn the inputs of `Match.predict` into a list of questions.

    Raises:
        FileError, ArgumentError, DtypeError: an image that cannot be read, something that is neither image nor text, or
            a table with neither of the columns.
    """
    if isinstance(inputs, Data):
        return inputs.columns[QUESTION]
    if isinstance(inputs, Path | str) and not is_image_path(str(inputs)) and Path(inputs).is_file():
        return _read_table(inputs, options, Path(inputs).parent)
    if isinstance(inputs, Path) and not is_image_path(str(inputs)):
        raise FileError(f"{inputs}: no such file")
    if hasattr(inputs, "columns") or _is_columns(inputs):
        return _read_table(inputs, options, None)
    several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not several:
        raise ArgumentError("expected a text, an image or a pair of them. Received: an empty list")
    return [_question(each, place, options) for place, each in enumerate(several)]


def _is_columns(inputs: Any) -> bool:
    return isinstance(inputs, Mapping) and any(isinstance(value, list | tuple) for value in inputs.values())


def _question(given: Any, place: int, options: MatchOptions) -> Question:
    if isinstance(given, Question):
        return given
    if isinstance(given, str) and not is_image_path(given):
        if not given.strip():
            raise ArgumentError(f"input {place}: expected a text. Received: an empty one")
        return Question(text=given)
    if not isinstance(given, Mapping):
        return _with_image(given, None, place, options, None)
    image, text = (given.get(name, given.get(key)) for name, key in (("image", options.image), ("text", options.text)))
    if image is None and text is None:
        names = dict.fromkeys(("image", "text", options.image, options.text))
        raise ArgumentError(f"input {place}: expected {' or '.join(names)}. Received: {', '.join(map(str, given))}")
    if text is not None and not isinstance(text, str):
        raise DtypeError(f"input {place}: expected text as a string. Received: {type(text).__name__}")
    return Question(text=text) if image is None else _with_image(image, text, place, options, None)


def _with_image(image: Any, text: str | None, place: int, options: MatchOptions, folder: Path | None) -> Question:
    try:
        pixels = read_picture(image, options.image_size, options.channels, folder)
    except HeadwiseError as error:
        raise type(error)(f"input {place}: {error}") from error
    return Question(name_image(image, place), pixels, text)


def asked_in(table: Table, options: MatchOptions) -> Data:
    """Make a question of each row of a table, for `questions`. Rows without a readable image are left out.

    Raises:
        ArgumentError: the table has neither an image nor a text column; NoUsableRows: no row is left (in the error's
            `data` each question has a black image).
    """
    images, texts = _find_columns(table, options)
    folder, side = Path(table.name).parent, options.image_size
    asked = []
    unusable: dict[int, str] = {}
    for row, number in enumerate(table.numbers):
        text = None if texts is None else texts[row]
        if images is None:
            asked.append(Question(text=text))
            continue
        pixels = np.zeros((side, side, options.channels), np.uint8)
        try:
            pixels = read_picture(images[row], side, options.channels, folder)
        except HeadwiseError as error:
            unusable[row] = why_not(images[row], error)
        asked.append(Question(name_image(images[row], number), pixels, text))
    return Data(table.name, {QUESTION: asked}, table.numbers, unit=table.unit).without(unusable)


def _read_table(source: Any, options: MatchOptions, folder: Path | None) -> list[Question]:
    table = open_table(source)
    images, texts = _find_columns(table, options)
    if images is None:
        return [Question(text=text) for text in texts or ()]
    rows = zip(images, [None] * len(images) if texts is None else texts, table.numbers, strict=True)
    return [_with_image(image, text, number, options, folder) for image, text, number in rows]


def _find_columns(table: Table, options: MatchOptions) -> tuple[list[Any] | None, list[str] | None]:
    """Return (the column of images, the column of texts) of a table; None for a column that it does not have."""
    images, texts = table.columns.get(options.image), table.columns.get(options.text)
    if images is None and texts is None:
        raise ArgumentError(
            f"{table.name}: there is no column {options.image!r} and no column {options.text!r}. The columns are: "
            f"{', '.join(table.columns) or 'none'}"
        )
    return images, None if texts is None else as_texts(table, options.text, texts)
