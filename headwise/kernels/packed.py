"""Packed documents and padding: each document is computed by itself, and padding not at all."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import tiled
from headwise.kernels.kernel import Cost
from headwise.kernels.tiled import Run, Schedule, Section, Tile, runs_of
from headwise.masks.band import Band
from headwise.masks.documents import Documents
from headwise.masks.mask import And, Extent, Mask
from headwise.masks.padding import PaddingKeys, PaddingLengths


def refuse(call: AttentionCall) -> str | None:
    """Masks other than documents (and causal within them) or padding, and what no tiled kernel can do."""
    if call.mask is None:
        return "the call has no mask"
    if _documents(call.mask) is None and not isinstance(call.mask, PaddingLengths | PaddingKeys):
        return f"the mask is not documents, documents & causal, or padding: {call.mask!r}"
    return tiled.refuse(call)


def cost(call: AttentionCall) -> Cost:
    return tiled.cost(call, schedule(call))


def run(call: AttentionCall) -> Tensor:
    return tiled.run(call, schedule(call))


def schedule(call: AttentionCall) -> Schedule:
    """One tile a document, or one an example without its padding."""
    assert call.mask is not None
    return call.mask.remember(("packed schedule", *call.shape[2:]), lambda: _schedule(call))


def _schedule(call: AttentionCall) -> Schedule:
    mask = call.mask
    assert mask is not None
    q_len, k_len = call.shape[2:]
    found = _documents(mask)
    if found is None:
        keys = torch.arange(k_len)
        real = mask.cells(keys[:1], keys)[:, 0, 0].to(torch.int8) * Extent.ALL
        tiles = [[Tile(0, q_len, runs)] if (runs := runs_of(row, 1, k_len)) else [] for row in real.tolist()]
    else:
        documents, causal = found
        tiles = [_document_tiles(row, causal, q_len, k_len) for row in documents.ids.tolist()]
    sections = (Section(b if mask.batch else None, None, tuple(row)) for b, row in enumerate(tiles))
    return Schedule(tuple(sections))


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


def _document_tiles(ids: list[int], causal: bool, q_len: int, k_len: int) -> list[Tile]:
    """One tile a document; a document in several pieces gets one a piece, each over the keys of all."""
    pieces: dict[int, list[Run]] = {}
    lo = 0
    for position in range(1, k_len + 1):
        if position == k_len or ids[position] != ids[lo]:
            if ids[lo] >= 0:
                pieces.setdefault(ids[lo], []).append(Run(lo, position, False))
            lo = position
    tiles = []
    offset = k_len - q_len
    for runs in pieces.values():
        for piece in runs:
            q_lo, q_hi = max(0, piece.lo - offset), piece.hi - offset
            if q_lo >= q_hi:
                continue
            square = len(runs) == 1 and q_hi - q_lo == piece.hi - piece.lo
            keys = runs if not causal or square else [Run(run.lo, run.hi, True) for run in runs if run.lo < piece.hi]
            tiles.append(Tile(q_lo, q_hi, tuple(keys), causal=causal and square))
    return tiles
