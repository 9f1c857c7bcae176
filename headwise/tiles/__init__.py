"""Cut a mask into tiles (some queries, and the keys that they need): the parts of the Q × K matrix to compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headwise.masks import Mask
from headwise.tiles import band, blocks, documents
from headwise.tiles.runs import WIDTH, forbidden, joined, runs_of_rows, split
from headwise.tiles.tile import Run, Tile, TileList

__all__ = [
    "CUTTERS",
    "WIDTH",
    "Cutter",
    "Run",
    "Tile",
    "TileList",
    "cutter_of",
    "forbidden",
    "joined",
    "runs_of_rows",
    "split",
]


class Cutter(Protocol):
    """The interface of a module that cuts masks into tiles (some consecutive queries, and the keys that they need)."""

    @property
    def HEIGHTS(self) -> Sequence[int | None]:  # noqa: N802 (a constant of the module)
        """The heights of tiles (numbers of queries) that are worth trying; None = the cutter chooses from the mask."""

    def takes(self, mask: Mask) -> bool:
        """Whether the cutter can cut this mask, which is aligned to its lengths."""

    def cut(self, mask: Mask, q_len: int, k_len: int, height: int | None = None) -> TileList:
        """Cut the mask into tiles of at most `height` queries each; None = as the cutter chooses."""


# A mask is cut by the first cutter that can cut it; the last one can cut every mask.
CUTTERS: dict[str, Cutter] = {"band": band, "documents": documents, "blocks": blocks}


def cutter_of(mask: Mask) -> str:
    """Return the name of the cutter that cuts this mask."""
    return next(name for name, cutter in CUTTERS.items() if cutter.takes(mask))


def __dir__() -> list[str]:
    return __all__
