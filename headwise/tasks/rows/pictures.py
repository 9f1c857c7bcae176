"""Reads images as pixels of one size: from files, arrays and Pillow images."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.errors import ArgumentError, DtypeError, HeadwiseError
from headwise.images import read_image

Pixels = NDArray[np.uint8]  # [height, width, channels]

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # of `decoded`
MOST_PIXELS = 50_000_000  # of `decoded`, before scaling: a file of a few kilobytes may decode to gigabytes
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def is_image_path(text: str) -> bool:
    """Return whether a text is the path of an image, by its suffix."""
    return text.lower().endswith(SUFFIXES)


def read_picture(image: Any, size: int, channels: int, folder: Path | None = None) -> Pixels:
    """Read an image, scaled to `size` × `size`, grey (1 channel) or colour (3): uint8 [size, size, channels].

    Args:
        image: a path, an array or tensor [H, W], [H, W, 1] or [H, W, 3] (uint8, or floats from 0 to 1), a PIL image.
        folder: the folder of relative paths.

    Raises:
        FileError: the file does not exist, or is not an image.
        ArgumentError, DtypeError: the object has no pixels.
    """
    from PIL import Image

    if isinstance(image, (str, Path)):
        image = Path(image) if folder is None else folder / image
    elif not isinstance(image, Image.Image):
        image = Image.fromarray(_array(image))
    upright = read_image(image).convert("L" if channels == 1 else "RGB")
    if upright.size != (size, size):
        upright = upright.resize((size, size), Image.Resampling.BILINEAR)
    return np.array(upright, dtype=np.uint8).reshape(size, size, channels)


def decoded(data: Any) -> Any:
    """Decode the bytes of an untrusted image file into a PIL image. Raises DtypeError, ArgumentError."""
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


def name_image(image: Any, place: int) -> str:
    """Return the name of an image: its path, or "image 3" (`place`, its index among the inputs) if it has no path."""
    return str(image) if isinstance(image, (str, Path)) else f"image {place}"


def digest(text: str | bytes) -> int:
    """Return a 64-bit number for a text or bytes: the same in every process, and different for different contents."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)


def why_not(image: Any, error: HeadwiseError) -> str:
    """Return the reason why a row is left out, without details of its image, so that equal reasons can be counted."""
    if image is None or (isinstance(image, str) and not image.strip()) or (isinstance(image, float) and image != image):
        return "no image"
    if isinstance(image, str | Path):
        return "no such image" if isinstance(error.__cause__, FileNotFoundError) else "an image that cannot be read"
    return str(error)


def _array(image: Any) -> Pixels:
    """Return the pixels of an array or tensor: uint8 [H, W] or [H, W, 3]."""
    if hasattr(image, "detach"):
        image = image.detach().cpu().numpy()
    if not isinstance(image, np.ndarray) and not hasattr(image, "__array__") and not isinstance(image, list):
        raise DtypeError(f"image: expected a path, an array or a PIL image. Received: {type(image).__name__}")
    try:
        pixels = np.asarray(image)
    except ValueError as error:  # lists of different lengths
        raise ArgumentError("image: expected rows of one length") from error
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)) or pixels.size == 0:
        raise ArgumentError(f"image: expected [H, W] or [H, W, 3]. Received: {list(pixels.shape)}")
    if np.issubdtype(pixels.dtype, np.floating):
        if not (pixels.min() >= 0 and pixels.max() <= 1):
            raise ArgumentError(f"image: expected floats from 0 to 1. Received: {pixels.min():g} to {pixels.max():g}")
        return np.rint(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise DtypeError(f"image: expected uint8, or floats from 0 to 1. Received: {pixels.dtype}")
    return pixels
