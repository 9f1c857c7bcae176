"""Reads images, by Pillow: the one place that opens a file of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.errors import FileError


def read_image(image: Any) -> Any:
    """Read an image, upright, as a PIL image: cameras store photos turned, with a tag (EXIF) that says how.

    Args:
        image: a path, or a PIL image.

    Raises:
        FileError: the file does not exist, or is not an image.
    """
    from PIL import Image, ImageOps

    if not isinstance(image, (str, Path)):
        return ImageOps.exif_transpose(image)
    try:
        with Image.open(image) as opened:
            opened.load()
            return ImageOps.exif_transpose(opened)
    except FileNotFoundError as error:
        raise FileError("{image}: no such image", image=image) from error
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise FileError("{image}: not an image that can be read", image=image) from error
