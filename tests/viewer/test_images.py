"""Images as data: URIs: read back by another library, pixel by pixel."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headwise.errors import ArgumentError, FileError
from headwise.viewer.images import data_uri


def pixels(uri: str, kind: str = "png") -> np.ndarray:
    beginning = f"data:image/{kind};base64,"
    assert uri.startswith(beginning)
    with Image.open(io.BytesIO(base64.b64decode(uri[len(beginning) :], validate=True))) as image:
        image.load()
        assert image.format == kind.upper()
        return np.asarray(image)


COLOUR = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 14
GREY = COLOUR[:, :, 0]

GIVEN: dict[str, tuple[Any, np.ndarray]] = {
    "bytes": (COLOUR, COLOUR),
    "grey bytes": (GREY, GREY),
    "another order in memory": (np.asfortranarray(COLOUR), COLOUR),
    "a view": (COLOUR[::-1, ::2], COLOUR[::-1, ::2]),
    "floats": (COLOUR.astype(np.float32) / 255, COLOUR),
    "doubles": (GREY / 255, GREY),
    "a tensor": (torch.from_numpy(COLOUR), COLOUR),
    "a tensor of floats that trains": ((torch.from_numpy(GREY) / 255).requires_grad_(), GREY),
    "half precision": (torch.from_numpy(GREY / 255).half(), GREY),
    "PIL": (Image.fromarray(COLOUR), COLOUR),
    "PIL with a palette": (Image.fromarray(COLOUR).convert("P", palette=Image.Palette.ADAPTIVE), COLOUR),
    "one pixel": (np.full((1, 1), 7, np.uint8), np.full((1, 1), 7, np.uint8)),
}


@pytest.mark.parametrize("name", GIVEN)
def test_pixels_come_back(name: str) -> None:
    given, expected = GIVEN[name]
    assert (pixels(data_uri(given)) == expected).all()


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_a_file_is_carried_as_it_is_whatever_it_is_called(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.dat"
    Image.fromarray(COLOUR).save(path, format=kind)
    for given in (path, str(path)):
        assert base64.b64decode(data_uri(given).partition(",")[2]) == path.read_bytes()
    assert pixels(data_uri(path), kind).shape == COLOUR.shape


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"<svg onload='alert(1)'/>", b"\x89PNG"])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(
        ArgumentError,
        match=r"images: expected a PNG or JPEG file\. Received: .*a\.png\. Save it in one of these formats",
    ):
        data_uri(tmp_path / "a.png")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"images: .*nowhere\.png cannot be read: no such file or directory"):
        data_uri(tmp_path / "nowhere.png")
    with pytest.raises(FileError, match=r"images: .* cannot be read: is a directory"):
        data_uri(tmp_path)


REFUSED = {
    "channels first": (np.zeros((3, 4, 5)), r"\[H, W, 3\] or \[H, W\]. Received: float64 \[3, 4, 5\]"),
    "transparency": (np.zeros((4, 5, 4), np.uint8), r"Received: uint8 \[4, 5, 4\]"),
    "a batch": (np.zeros((1, 4, 5, 3)), r"Received: float64 \[1, 4, 5, 3\]"),
    "no pixels": (np.zeros((0, 5)), r"Received: float64 \[0, 5\]"),
    "integers": (np.zeros((4, 5), np.int64), r"Received: int64 \[4, 5\]"),
    "normalised": (np.full((4, 5), -2.1), "floats from 0 to 1. Received: -2.1 to -2.1. Undo the normalisation"),
    "NaN": (np.full((4, 5), np.nan), "floats from 0 to 1. Received: nan to nan"),
    "no image": (3, r"Received: int64 \[\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_image_is_refused(name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        data_uri(given)
