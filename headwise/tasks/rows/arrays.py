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


def write_array(path: Path, vectors_NM: Any) -> None:
    """Write an array [N, M]. The name of the file may end in anything."""
    with path.open("wb") as out:
        np.save(out, np.ascontiguousarray(vectors_NM), allow_pickle=False)


def join_arrays(target: Path, parts: Sequence[Path]) -> None:
    """Write one array of the rows of those that `write_array` wrote, of one width and dtype."""
    shapes = []
    for path in parts:
        with path.open("rb") as part:
            shape, dtype = _header(part)
            shapes.append(shape)
    total = (sum(rows for rows, _ in shapes), shapes[0][1])
    with target.open("wb") as out:
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": total}
        np.lib.format.write_array_header_1_0(out, about)
        for path in parts:
            with path.open("rb") as part:
                _header(part)
                shutil.copyfileobj(part, out, 1 << 20)


def _header(part: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the dtype; then the file stands at its numbers."""
    np.lib.format.read_magic(part)
    shape, _, dtype = np.lib.format.read_array_header_1_0(part)
    return shape, dtype
