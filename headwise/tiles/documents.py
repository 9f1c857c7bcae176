"""Cuts masks of packed documents and of padding: a document sees only itself, and padding is not computed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import torch

from headwise.masks import Mask
from headwise.masks.band import Band
from headwise.masks.documents import Documents
from headwise.masks.extent import Extent
from headwise.masks.padding import PaddingKeys, PaddingLengths
from headwise.tiles.runs import make_runs
from headwise.tiles.tile import Ints, Run, Tile, TileList

HEIGHTS = (None, 768, 256, 64)  # None: whole documents


def takes(mask: Mask) -> bool:
    """Whether the mask is documents (perhaps causal within them) or padding."""
    return _documents(mask) is not None or isinstance(mask, PaddingLengths | PaddingKeys)


def cut(mask: Mask, q_len: int, k_len: int, height: int | None = None) -> TileList:
    """Cut each document, or each example without its padding, into tiles of at most `height` queries."""
    height = max(1, q_len) if height is None else height
    found = _documents(mask)
    if found is None:
        keys = torch.arange(k_len, device=mask.device or "cpu")
        real = mask.cells(keys.new_zeros(1), keys)[:, 0, 0].cpu().numpy() * Extent.ALL
        rows = [_in_rows(0, q_len, make_runs(row, range(k_len + 1)), height) for row in real]
    else:
        documents, causal = found
        ids = documents.ids.cpu().numpy()
        rows = [list(_document_tiles(row, causal, q_len, documents.shift, height)) for row in ids]
    tiles = (dataclasses.replace(tile, b=b if mask.batch else None) for b, each in enumerate(rows) for tile in each)
    # Within a document only the diagonal is masked, which is the same in every tile.
    return TileList(tiles, matrices=mask.batch or 1, alike=True)


def _documents(mask: Mask) -> tuple[Documents, bool] | None:
    """Return (the mask's documents, whether it is causal within them); None if the mask has another part."""
    documents = [part for part in mask.conjuncts if isinstance(part, Documents)]
    causal = [part for part in mask.conjuncts if isinstance(part, Band) and part.left is None and part.right == 0]
    if len(documents) != 1 or len(mask.conjuncts) != 1 + len(causal):
        return None
    if any(part.offset != documents[0].offset for part in causal):
        return None
    return documents[0], bool(causal)


def _document_tiles(ids: Ints, causal: bool, q_len: int, offset: int, height: int) -> Iterator[Tile]:
    """Yield the tiles of one row of packed documents. A document in several pieces gets the keys of all its pieces.

    Query q is at the position of key q + offset.
    """
    pieces: dict[int, list[Run]] = {}
    edges = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    for lo, hi in itertools.pairwise(edges):
        if lo < hi and ids[lo] >= 0:
            pieces.setdefault(int(ids[lo]), []).append(Run(lo, hi, False))
    for runs in pieces.values():
        for piece in runs:
            q_lo, q_hi = max(0, piece.lo - offset), min(q_len, piece.hi - offset)
            whole = len(runs) == 1 and q_hi - q_lo == piece.hi - piece.lo <= height
            if causal and whole:
                yield Tile(q_lo, q_hi, (piece,), causal=True)
            elif causal:
                for lo in range(q_lo, q_hi, height):
                    hi = min(q_hi, lo + height)
                    yield from _in_rows(lo, hi, _up_to_diagonal(runs, lo + offset, hi + offset), height)
            else:
                yield from _in_rows(q_lo, q_hi, tuple(runs), height)


def _in_rows(q_lo: int, q_hi: int, runs: tuple[Run, ...], height: int) -> list[Tile]:
    return [Tile(lo, min(q_hi, lo + height), runs) for lo in range(q_lo, q_hi, height)] if runs else []


def _up_to_diagonal(runs: list[Run], first: int, past: int) -> tuple[Run, ...]:
    """Return the keys of `runs` that queries at positions [first, past) see causally.

    All these queries see the keys up to position `first`; the keys after it form a triangle, which is masked.
    """
    seen_by_all = [Run(run.lo, min(run.hi, first + 1), False) for run in runs]
    triangle = [Run(max(run.lo, first + 1), min(run.hi, past), True) for run in runs]
    return tuple(run for run in seen_by_all + triangle if run.lo < run.hi)
