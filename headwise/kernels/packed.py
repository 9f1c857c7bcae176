"""Packed documents and padding: a document sees itself alone, and padding is not computed."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import tiled
from headwise.kernels.kernel import Cost
from headwise.kernels.schedule import HEIGHTS, Run, Schedule, Section, Tile, cut, quickest, runs_of
from headwise.masks.band import Band
from headwise.masks.documents import Documents
from headwise.masks.extent import Extent
from headwise.masks.mask import And, Mask
from headwise.masks.padding import PaddingKeys, PaddingLengths


def refuse(call: AttentionCall) -> str | None:
    """Masks other than documents (and causal within them) or padding, and what no tiled kernel can do."""
    if call.mask is None:
        return "the call has no mask"
    if _documents(call.mask) is None and not isinstance(call.mask, PaddingLengths | PaddingKeys):
        return f"the mask is not documents, documents & causal, or padding: {call.mask!r}"
    return tiled.refuse(call)


def cost(call: AttentionCall) -> Cost:
    return schedule(call).cost(call)


def run(call: AttentionCall) -> Tensor:
    return tiled.run(call, schedule(call))


def schedule(call: AttentionCall) -> Schedule:
    """The tiles of each document, or of each example without its padding, of the height that should be quickest."""
    mask = call.mask
    assert mask is not None

    def choose() -> Schedule:
        return quickest(call, [_tiles(mask, *call.shape[2:], height) for height in (call.shape[2], *HEIGHTS)])

    return mask.remember(("packed schedule", *call.shape, call.trains), choose)


def _tiles(mask: Mask, q_len: int, k_len: int, height: int) -> Schedule:
    found = _documents(mask)
    if found is None:
        keys = torch.arange(k_len)
        real = mask.cells(keys[:1], keys)[:, 0, 0].to(torch.int8) * Extent.ALL
        rows = [_cut_rows(0, q_len, runs_of(row, 1, k_len), height) for row in real.tolist()]
    else:
        documents, causal = found
        rows = [_document_tiles(row, causal, q_len, k_len, height) for row in documents.ids.tolist()]
    sections = (Section(b if mask.batch else None, None, tuple(tiles)) for b, tiles in enumerate(rows))
    # All that is masked within a document is the diagonal, which looks the same from every tile.
    return Schedule(tuple(sections), alike=True)


def _documents(mask: Mask) -> tuple[Documents, bool] | None:
    """(the documents, whether attention is causal within them), if that is all the mask says."""
    parts = mask.parts if isinstance(mask, And) else (mask,)
    documents = [part for part in parts if isinstance(part, Documents)]
    causal = [part for part in parts if isinstance(part, Band) and part.left is None and part.right == 0]
    if len(documents) != 1 or len(parts) != 1 + len(causal):
        return None
    if any(part.offset != documents[0].offset for part in causal):
        return None
    return documents[0], bool(causal)


def _document_tiles(ids: list[int], causal: bool, q_len: int, k_len: int, height: int) -> list[Tile]:
    """The tiles of one row of packed documents; those of a document in pieces take the keys of all its pieces."""
    pieces: dict[int, list[Run]] = {}
    lo = 0
    for position in range(1, k_len + 1):
        if position == k_len or ids[position] != ids[lo]:
            if ids[lo] >= 0:
                pieces.setdefault(ids[lo], []).append(Run(lo, position, False))
            lo = position
    tiles: list[Tile] = []
    offset = k_len - q_len
    for runs in pieces.values():
        for piece in runs:
            q_lo, q_hi = max(0, piece.lo - offset), piece.hi - offset
            whole = len(runs) == 1 and q_hi - q_lo == piece.hi - piece.lo <= height
            if not causal:
                tiles.extend(_cut_rows(q_lo, q_hi, tuple(runs), height))
            elif whole:
                tiles.append(Tile(q_lo, q_hi, (piece,), causal=True))
            else:
                for lo in range(q_lo, q_hi, height):
                    hi = min(q_hi, lo + height)
                    tiles.extend(cut(lo, hi, _up_to_diagonal(runs, lo + offset, hi + offset)))
    return tiles


def _cut_rows(q_lo: int, q_hi: int, runs: tuple[Run, ...], height: int) -> list[Tile]:
    return [tile for lo in range(q_lo, q_hi, height) for tile in cut(lo, min(q_hi, lo + height), runs)]


def _up_to_diagonal(runs: list[Run], first: int, past: int) -> list[Run]:
    """The keys that queries at the positions [first, past) see: all up to the first's own, and then a triangle."""
    seen_by_all = [Run(run.lo, min(run.hi, first + 1), False) for run in runs]
    triangle = [Run(max(run.lo, first + 1), min(run.hi, past), True) for run in runs]
    return seen_by_all + triangle
