"""Files are written beside their target and renamed: nothing half-written is ever left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`, to write to. At the end it takes the place of `path`; if anything goes wrong, it is gone.

    OSError passes through, for the caller to say what could not be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
