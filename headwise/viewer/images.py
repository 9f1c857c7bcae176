"""Encodes images for a page as data: URIs: PNG and JPEG files unchanged, pixels as PNG.

The input of a model can be shown, too: its channels may come first, and its normalisation is removed.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.errors import ArgumentError, FileError

Image = Any  # a path, pixels as an array or tensor, a PIL image
Normalisation = Any  # an image processor of transformers, or the pair (mean, std)

KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}
SPREAD = (
    "The colours of the image are spread from its lowest to its highest value, because its normalisation is not known."
)


class Picture(NamedTuple):
    """An image in a page."""

    uri: str  # data: URI
    note: str | None = None  # a note for the reader on its colours


def each_image(images: Any) -> Any:
    """Split a batch (an image processor's output, or pixels [B, C, H, W]) into a list of images.

    Anything else is returned as it is.
    """
    if isinstance(images, Mapping) and "pixel_values" in images:
        images = images["pixel_values"]
    if getattr(images, "ndim", 0) == 4:
        return list(images)
    if isinstance(images, (list, tuple)):  # each as a batch of one
        return [each[0] if getattr(each, "ndim", 0) == 4 and len(each) == 1 else each for each in images]
    return images


def picture(image: Image, processor: Normalisation = None) -> Picture:
    """Encode an image as a data: URI.

    Args:
        image: a PNG or JPEG file, a PIL image, or pixels [H, W], [H, W, 3] or [3, H, W]: uint8, or floats. Floats from
            0 to 1 are shown unchanged; others are the input of a model, from which the normalisation is removed.
        processor: the image processor that normalised the pixels, or (mean, std), a number for each channel; None =
            unknown: then the values are spread from black to white, and the page says so.

    Raises:
        FileError: the file cannot be read.
        ArgumentError: the image or the processor is something else.
    """
    if isinstance(image, (str, Path)):
        data = _read(Path(image))
        kind = next((kind for magic, kind in KINDS.items() if data.startswith(magic)), None)
        if kind is None:
            raise ArgumentError(
                f"images: expected a PNG or JPEG file. Received: {image}. Save it in one of these formats"
            )
        return Picture(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")
    pixels, note = _pixels(image, processor)
    return Picture(f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}", note)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"images: {path} cannot be read: {(error.strerror or str(error)).lower()}") from error


def _pixels(image: Any, processor: Normalisation) -> tuple[NDArray[np.uint8], str | None]:
    """Return (pixels uint8 [H, W, 3] or [H, W], a note for the reader on their colours or None)."""
    if hasattr(image, "detach"):
        image = image.detach().cpu()
        image = image.float() if image.is_floating_point() else image  # NumPy has no bfloat16
    elif hasattr(image, "convert"):  # PIL: palettes and transparency become colours
        image = image.convert("RGB")
    pixels = np.asarray(image)
    read_by_model = pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3)
    if read_by_model:
        pixels = np.moveaxis(pixels, 0, 2)
    floats = np.issubdtype(pixels.dtype, np.floating)
    fits = pixels.ndim in (2, 3) and pixels.shape[2:] in ((), (1,), (3,)) and pixels.size > 0
    if not fits or not (floats or pixels.dtype == np.uint8):
        shape = f"{pixels.dtype} {list(np.shape(image))}"
        raise ArgumentError(
            "images: expected a path, a PIL image, or uint8 or floats [H, W], [H, W, 3], [3, H, W] or a batch "
            f"[B, 3, H, W]. Received: {shape}. For images as a model reads them, pass its pixel_values"
        )
    note = None
    if floats:
        pixels = pixels.astype(np.float64)
        if not np.isfinite(pixels).all():
            raise ArgumentError("images: expected finite pixels. Received: NaN or inf. Pass the image itself")
        if processor is not None:
            pixels = np.clip(_restored(pixels, processor), 0.0, 1.0)
        elif not (pixels.min() >= 0 and pixels.max() <= 1):
            low, high = pixels.min(), pixels.max()
            pixels, note = (pixels - low) / (high - low or 1.0), SPREAD
        pixels = np.rint(pixels * 255)
    return pixels.astype(np.uint8).squeeze(2) if pixels.shape[2:] == (1,) else pixels.astype(np.uint8), note


def _restored(pixels: NDArray[Any], processor: Normalisation) -> NDArray[Any]:
    """Undo the processor's normalisation of pixels: numbers from 0 to 1."""
    of_images: Any = getattr(processor, "image_processor", processor)  # the part of a processor of texts and images
    if isinstance(processor, (tuple, list)) and len(processor) == 2:
        mean, std = processor
    elif getattr(of_images, "image_mean", None) is not None and getattr(of_images, "image_std", None) is not None:
        if not getattr(of_images, "do_normalize", True):
            return pixels
        mean, std = of_images.image_mean, of_images.image_std
    else:
        raise ArgumentError(
            "processor: expected an image processor with image_mean and image_std, or the pair (mean, std). "
            f"Received: {type(processor).__name__}"
        )
    mean, std = (np.asarray(x, np.float64).reshape(-1) for x in (mean, std))
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if not {len(mean), len(std)} <= {1, channels}:
        raise ArgumentError(
            f"processor: expected a mean and a std for each of {channels} channels. Received: {len(mean)}, {len(std)}"
        )
    restored: NDArray[Any] = pixels * std + mean
    return restored


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode pixels as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape[:2]
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each line begins with its filter: 0 = none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines.tobytes(), 6)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
