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
from headwise.viewer.images import SPREAD, each_image, picture


def data_uri(image: Any) -> str:
    return picture(image).uri


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
    "as a model reads it": (np.moveaxis(COLOUR, 2, 0).repeat(2, 2) / 255, COLOUR.repeat(2, 1)),
    "one channel first": (GREY[None].repeat(2, 2), GREY.repeat(2, 1)),
    "one channel last": (GREY[..., None], GREY),
    "bfloat16": (torch.tensor([[0.0, 1.0]]).bfloat16(), np.array([[0, 255]])),
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
    "transparency": (np.zeros((4, 5, 4), np.uint8), r"Received: uint8 \[4, 5, 4\]"),
    "a batch": (np.zeros((1, 4, 5, 3)), r"Received: float64 \[1, 4, 5, 3\]"),
    "no pixels": (np.zeros((0, 5)), r"Received: float64 \[0, 5\]"),
    "integers": (np.zeros((4, 5), np.int64), r"Received: int64 \[4, 5\]"),
    "NaN": (np.full((4, 5), np.nan), "expected finite pixels. Received: NaN or inf. Pass the image itself"),
    "no image": (3, r"Received: int64 \[\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_image_is_refused(name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        data_uri(given)


MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


class Processor:
    """As the image processors of transformers."""

    do_normalize = True
    image_mean, image_std = list(MEAN), list(STD)


@pytest.mark.parametrize("processor", [(MEAN, STD), Processor(), type("Both", (), {"image_processor": Processor()})()])
def test_a_known_normalisation_is_removed(processor: Any) -> None:
    wide = COLOUR.repeat(2, 1)
    read = np.moveaxis((wide / 255 - MEAN) / STD, 2, 0)
    found = picture(torch.from_numpy(read), processor)
    assert (pixels(found.uri) == wide).all()
    assert found.note is None

    plain = Processor()
    plain.do_normalize = False
    assert (pixels(picture(COLOUR / 255, plain).uri) == COLOUR).all()


def test_an_unknown_normalisation_is_said() -> None:
    read = (COLOUR.repeat(2, 1) / 255 - 0.5) / 0.5
    found = picture(np.moveaxis(read, 2, 0))
    shown = pixels(found.uri)
    assert (shown.min(), shown.max()) == (0, 255)
    assert found.note == SPREAD
    assert picture(np.full((4, 5), -2.1)).note == SPREAD  # of one colour: black


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (3, r"expected an image processor with image_mean and image_std, or the pair \(mean, std\). Received: int"),
        (((0.5, 0.5), 1.0), "expected a mean and a std for each of 3 channels. Received: 2, 1"),
    ],
)
def test_what_is_no_processor_is_refused(processor: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"processor: {message}"):
        picture(COLOUR / 255, processor)


def test_a_batch_is_the_list_of_its_images() -> None:
    batch = torch.rand(2, 3, 4, 5)
    for given in (batch, {"pixel_values": batch}, list(batch), [batch[:1], batch[1:]]):
        found = each_image(given)
        assert len(found) == 2
        assert all(torch.equal(one, other) for one, other in zip(found, batch, strict=True))
    assert each_image("a.png") == "a.png"
