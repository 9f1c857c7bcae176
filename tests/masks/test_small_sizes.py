"""Every question that a mask answers, at every size from nothing to five queries and keys, against its predicate."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headwise
from headwise import masks
from headwise.errors import KernelRefused
from headwise.masks import Extent, Mask
from headwise.masks.description import describe, rebuild
from headwise.masks.share import cut_share
from headwise.native.sight import find_sight
from headwise.tiles import CUTTERS, TileList
from tests.mask_zoo import ZOO, compositions, fits

B, H = 2, 2
SIZES = list(itertools.product(range(6), range(6)))
MASKS = {
    **ZOO,
    "picked": lambda B, H, Q, K: masks.picked(
        masks.window(5, 3, offset=0), 2 * torch.arange(Q), torch.arange(K) + torch.arange(K) // 2
    ),
}


def cells_of(mask: Mask, q_len: int, k_len: int) -> Tensor:
    """bool [B, H, Q, K]: what the predicate says."""
    index = torch.meshgrid(*(torch.arange(n) for n in (B, H, q_len, k_len)), indexing="ij")
    return torch.broadcast_to(torch.as_tensor(mask.allows(*index)), (B, H, q_len, k_len))


def code_of(cells: Tensor) -> Tensor:
    """The true extent of rectangles, [B, H]."""
    return cells.flatten(2).any(-1).to(torch.int8) + cells.flatten(2).all(-1)


def is_right(codes: Tensor, cells: Tensor) -> bool:
    """Whether extent codes are those of these cells, or SOME."""
    codes = codes.expand(B, H)
    return bool(((codes == code_of(cells)) | (codes == Extent.SOME)).all())


def check(mask: Mask, q_len: int, k_len: int, draw: random.Random) -> None:
    """Ask everything at four sizes, something at the others."""
    aligned = mask.aligned(q_len, k_len)
    cells = cells_of(aligned, q_len, k_len)
    questions = [dense_forms, rectangles, blocks, keys_and_rows, flags, tiles, written, whole_calls]
    for question in questions if (q_len, k_len) in [(0, 0), (0, 3), (3, 0), (1, 1)] else draw.sample(questions, 1):
        question(mask, aligned, cells, draw)


def dense_forms(mask: Mask, aligned: Mask, cells: Tensor, draw: random.Random) -> None:
    lengths = cells.shape[2:]
    assert torch.equal(mask.to_bool(*lengths).expand_as(cells), cells)
    assert torch.equal((mask.to_additive(*lengths) == 0).expand_as(cells), cells)
    rows = [" ".join("■" if cell else "·" for cell in row) for row in cells[1, 1].tolist()]
    assert mask.draw(*lengths, b=1, h=1) == "\n".join(rows)
    found, rest = masks.recognise_additive(mask.to_additive(*lengths))
    assert rest is None
    for small in (found, masks.recognise(cells)):
        assert torch.equal(torch.ones_like(cells) if small is None else small.to_bool(*lengths).expand_as(cells), cells)


def rectangles(mask: Mask, aligned: Mask, cells: Tensor, draw: random.Random) -> None:
    q_len, k_len = cells.shape[2:]
    some = [
        [edge for n in (q_len, k_len) for edge in sorted(draw.sample(range(n + 1), 2))]
        for _ in range(3 if q_len and k_len else 0)
    ]
    bounds = torch.tensor(some, dtype=torch.long).view(-1, 4).unbind(1)
    for codes in (aligned.rectangles(*bounds), aligned.rectangles(*bounds, torch.ones(len(some), dtype=torch.bool))):
        assert codes.shape[2:] == (len(some),)
        for code, (a, b, c, d) in zip(codes.unbind(2), some, strict=True):
            assert is_right(code, cells[:, :, a:b, c:d])
    q_lo, q_hi, k_lo, k_hi = (x[:, None] if i < 2 else x for i, x in enumerate(bounds))
    assert aligned.extent(q_lo, q_hi, k_lo, k_hi).shape[2:] == (len(some), len(some))
    assert aligned.rectangles(*bounds, torch.zeros(len(some), dtype=torch.bool)).shape == codes.shape


def blocks(mask: Mask, aligned: Mask, cells: Tensor, draw: random.Random) -> None:
    lengths, size = cells.shape[2:], draw.choice([(1, 1), (2, 3), (3, 2), (64, 64)])
    count = [-(-n // edge) for n, edge in zip(lengths, size, strict=True)]
    codes, runs = mask.blocks(*lengths, *size), mask.runs_of_blocks(*lengths, *size)
    assert list(codes.shape[2:]) == count == [runs.rows, runs.cols]
    of_runs = torch.zeros(runs.matrices[0] * runs.matrices[1] * runs.rows, runs.cols, dtype=torch.int8)
    for row, lo, hi, partly in zip(runs.row, runs.lo, runs.hi, runs.some, strict=True):
        of_runs[row, lo:hi] = Extent.SOME if partly else Extent.ALL
    assert runs.first[-1] == len(runs.row)
    assert sum(runs.counts()) == of_runs.numel()
    for i, rows in enumerate(cells.split(size[0], 2) if count[0] else []):
        for j, block in enumerate(rows.split(size[1], 3) if count[1] else []):
            assert is_right(codes[:, :, i, j], block)
            assert is_right(of_runs.view(*runs.matrices, *count)[:, :, i, j], block)
    assert mask.to_block_mask(*lengths, block_size=2).seq_lengths == lengths


def keys_and_rows(mask: Mask, aligned: Mask, cells: Tensor, draw: random.Random) -> None:
    q_len, k_len = cells.shape[2:]
    used = mask.used_keys(q_len, k_len)
    assert cells.any(2).all() if used is None else torch.equal(used.expand(B, H, -1), cells.any(2))
    rows = mask.causal_rows(q_len, k_len)
    for row, (causal, seen) in enumerate(zip(rows.unbind(2), cells[:, :, : max(0, q_len - 1)].unbind(2), strict=True)):
        assert not (causal & seen[..., max(0, row + 1 + k_len - q_len) :].any(-1)).any()
    part = cut_share(aligned, slice(1, 2), slice(0, 1))
    assert torch.equal(part.to_bool(q_len, k_len), cells[1:, :1])


def flags(mask: Mask, aligned: Mask, cells: Tensor, draw: random.Random) -> None:
    band, distance = aligned.band(), torch.arange(cells.shape[3]) - torch.arange(cells.shape[2])[:, None]
    if band is not None:
        assert torch.equal(((distance >= band[0]) & (distance <= band[1])).expand_as(cells), cells)
    if aligned.key_only:
        assert torch.equal(cells[:, :, :1].expand_as(cells), cells)
    for each in (mask, aligned):
        lengths = each.natural_lengths()
        assert lengths is None or each.aligned(*lengths) is not None
        assert "<code>" in each._repr_html_()


def tiles(mask: Mask, aligned: Mask, cells: Tensor, draw: random.Random) -> None:
    q_len, k_len = cells.shape[2:]
    for cutter in CUTTERS.values():
        for height in {None, 2, *cutter.HEIGHTS} if cutter.takes(aligned) else ():
            assert torch.equal(of_tiles(cutter.cut(aligned, q_len, k_len, height), cells), cells)
    find_sight(aligned, q_len, k_len)


def of_tiles(cut: TileList, cells: Tensor) -> Tensor:
    """The cells that tiles stand for, where a masked run has those of the mask."""
    found = torch.zeros_like(cells)
    for tile in cut:
        b, h = (slice(None) if at is None else slice(at, at + 1) for at in (tile.b, tile.h))
        for run in tile.runs:
            place = b, h, slice(tile.q_lo, tile.q_hi), slice(run.lo, run.hi)
            whole = torch.ones_like(cells[place])
            found[place] = cells[place] if run.masked else whole.tril() if tile.causal else whole
    assert not cut.covers(cells.shape[2]) or len(cut) or not cells.shape[2]
    return found


def written(mask: Mask, aligned: Mask, cells: Tensor, draw: random.Random) -> None:
    kept: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> str:
        kept[f"{name} {len(kept)}"] = x
        return f"{name} {len(kept) - 1}"

    tree = describe(aligned, *cells.shape[2:], keep)
    back = rebuild(tree, *cells.shape[2:], kept.__getitem__)
    assert torch.equal(back.to_bool(*cells.shape[2:]).expand_as(cells), cells)


def whole_calls(mask: Mask, aligned: Mask, cells: Tensor, draw: random.Random) -> None:
    q_len, k_len = cells.shape[2:]
    q, k, v = (torch.randn(B, H, n, 4, generator=torch.Generator().manual_seed(n)) for n in (q_len, k_len, k_len))
    assert str(headwise.plan(q, k, v, mask=mask))
    expected = (q @ k.mT / 2).masked_fill(~cells, -torch.inf).softmax(-1).nan_to_num(0.0) @ v
    for kernel in ("auto", draw.choice(["native", "tiled"])):
        try:
            out = headwise.attention(q, k, v, mask=mask, kernel=kernel)
        except KernelRefused:
            continue
        assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_every_mask(name: str) -> None:
    draw = random.Random(name)
    for sizes in SIZES:
        if fits(name, *sizes):
            check(MASKS[name](B, H, *sizes), *sizes, draw)


@settings(max_examples=60)
@given(st.data())
def test_compositions(data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from(SIZES))
    mask = data.draw(compositions((B, H, *sizes)))
    check(mask, *sizes, random.Random(repr(sizes)))
