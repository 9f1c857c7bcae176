"""Vectors as NumPy's .npy: written in parts, and joined without being read into memory.

A .npy is a short header with the shape, then the numbers. So the whole is a header with the sum of the rows, then what
stands behind the header of each part.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from headwise.files import damaged


def write_array(path: Path, vectors_NM: Any) -> None:
    """Write an array [N, M]. The name of the file may end in anything."""
    with path.open("wb") as out:
        np.save(out, np.ascontiguousarray(vectors_NM), allow_pickle=False)


def join_arrays(target: Path, parts: Sequence[Path]) -> None:
    """Write one array of the rows of those that `write_array` wrote, of one width and dtype.

    Raises:
        FileError: one of them is damaged.
    """
    shapes = []
    for path in parts:
        with path.open("rb") as part:
            shape, dtype = _header(part)
            shapes.append(shape)
    total = (sum(rows for rows, _ in shapes), shapes[0][1])
    item = shapes[0][1] * dtype.itemsize
    with target.open("wb") as out:
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": total}
        np.lib.format.write_array_header_1_0(out, about)
        for path, (rows, _) in zip(parts, shapes, strict=True):
            with path.open("rb") as part:
                _header(part)
                begin = out.tell()
                shutil.copyfileobj(part, out, 1 << 20)
                if out.tell() - begin != rows * item:
                    raise damaged(path)


def _header(part: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the dtype; then the file stands at its numbers."""
    try:
        np.lib.format.read_magic(part)
        shape, _, dtype = np.lib.format.read_array_header_1_0(part)
    except ValueError as error:
        raise damaged(Path(part.name)) from error
    return shape, dtype
