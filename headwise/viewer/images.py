"""Images as data: URIs in a page: PNG and JPEG files unchanged, pixels as PNG."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.errors import ArgumentError, FileError

Image = Any  # a path, an array or tensor [H, W, 3] or [H, W], a PIL image

KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


def data_uri(image: Image) -> str:
    """The image as a data: URI.

    Raises:
        FileError: the file cannot be read.
        ArgumentError: the image is neither a PNG or JPEG file nor pixels (uint8, or floats from 0 to 1).
    """
    if isinstance(image, (str, Path)):
        data = _read(Path(image))
        kind = next((kind for magic, kind in KINDS.items() if data.startswith(magic)), None)
        if kind is None:
            raise ArgumentError(
                f"images: expected a PNG or JPEG file. Received: {image}. Save it in one of these formats"
            )
    else:
        data, kind = _png(_pixels(image)), "png"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"images: {path} cannot be read: {(error.strerror or str(error)).lower()}") from error


def _pixels(image: Any) -> NDArray[np.uint8]:
    """uint8 [H, W, 3] or [H, W]."""
    if hasattr(image, "detach"):
        image = image.detach().cpu()
    elif hasattr(image, "convert"):  # PIL: palettes and transparency become colours
        image = image.convert("RGB")
    pixels = np.asarray(image)
    floats = np.issubdtype(pixels.dtype, np.floating)
    fits = pixels.ndim in (2, 3) and pixels.shape[2:] in ((), (3,)) and pixels.size > 0
    if not fits or not (floats or pixels.dtype == np.uint8):
        shape = f"{pixels.dtype} {list(pixels.shape)}"
        raise ArgumentError(f"images: expected a path, or uint8 or floats [H, W, 3] or [H, W]. Received: {shape}")
    if floats:
        if not (pixels.min() >= 0 and pixels.max() <= 1):
            raise ArgumentError(
                f"images: expected floats from 0 to 1. Received: {pixels.min():g} to {pixels.max():g}. "
                "Undo the normalisation of the model's processor"
            )
        pixels = np.rint(pixels.astype(np.float64) * 255)
    return pixels.astype(np.uint8)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """The pixels as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape[:2]
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each line begins with its filter: 0 = none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines.tobytes(), 6)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
