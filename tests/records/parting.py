"""What the tests of records in parts share: a call, and its parts made by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from headwise import masks
from headwise.call import AttentionCall, Share, make_call
from headwise.masks.picked import picked
from headwise.records import AttentionRecord, Seen, Site
from headwise.records.saving import PartOf, save

LENGTH = 60
ROWS = (list(range(0, 60, 3)), [*range(1, 30, 3), *range(31, 60, 3)], [i for i in range(60) if i % 3 == 2])


def whole_call() -> AttentionCall:
    q, k, v = (torch.randn(2, heads, LENGTH, 8, dtype=torch.float64) for heads in (4, 2, 2))
    return make_call(q, k, v, mask=masks.causal(), softcap=9.0, sinks=torch.randn(4, dtype=torch.float64))


def record_of(call: AttentionCall) -> AttentionRecord:
    return AttentionRecord(call, values=True, site=Site("layers.0.attention", 0, "self", True, 4, 2))


def split(call: AttentionCall, cols: list[list[int]] | None = None) -> list[AttentionRecord]:
    """A record for the rows of each part, over all keys up to its last row, or these."""
    assert call.mask is not None
    found = []
    for number, some in enumerate(ROWS):
        rows = torch.tensor(some)
        keys = torch.arange(some[-1] + 1) if cols is None else torch.tensor(cols[number])
        mask = picked(call.mask, rows, keys)
        part = dataclasses.replace(call, q=call.q[:, :, rows], k=call.k[:, :, keys], v=call.v[:, :, keys], mask=mask)
        found.append(record_of(dataclasses.replace(part, share=Share(rows, keys, LENGTH, call.mask))))
    return found


def write(folder: Path, parts: list[AttentionRecord], run: str = "a") -> Path:
    folder.mkdir(exist_ok=True)
    for number, record in enumerate(parts):
        part = PartOf(run, number, len(parts))
        save(Seen([record]), folder / part.file_name, part)
    return folder
