"""Runs of blocks, found from coarse to fine, and the bits of the native kernels: against the predicate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise import masks
from headwise.masks import Extent, Mask, block_runs
from headwise.masks.block_runs import BlockRuns
from headwise.native.sight import SIZE, find_sight
from tests.mask_zoo import ZOO, compositions, fits
from tests.masks.test_rectangles import true_extents

SIZES = [(2, 3, 40, 40), (2, 3, 17, 40), (1, 3, 1, 9)]


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large blocks are asked first even of short sequences, and few at a time."""
    monkeypatch.setattr(block_runs, "COARSE", 4)
    monkeypatch.setattr(block_runs, "TOGETHER", 64)


def codes_of(runs: BlockRuns) -> torch.Tensor:
    """The grid that runs stand for; each block is in at most one."""
    found = torch.zeros(runs.matrices[0] * runs.matrices[1] * runs.rows, runs.cols, dtype=torch.int8)
    for row, lo, hi, some in zip(runs.row, runs.lo, runs.hi, runs.some, strict=True):
        assert lo < hi
        assert not found[row, lo:hi].any()
        found[row, lo:hi] = Extent.SOME if some else Extent.ALL
    return found.view(*runs.matrices, runs.rows, runs.cols)


def check(mask: Mask, q_len: int, k_len: int, block_q: int, block_k: int) -> BlockRuns:
    """The runs are right, in order, and at least as exact as the answers for each block."""
    runs = mask.runs_of_blocks(q_len, k_len, block_q, block_k)
    codes, truth = codes_of(runs), true_extents(mask, q_len, k_len, block_q, block_k)
    assert ((codes == truth) | (codes == Extent.SOME)).all(), mask
    grid = mask.blocks(q_len, k_len, block_q, block_k)
    assert ((codes == grid) | (codes == truth)).all(), mask
    places = runs.row * runs.cols + runs.lo
    assert (np.diff(places) > 0).all()
    assert runs.first[-1] == len(runs.row)
    assert runs.counts() == tuple(int((codes == code).sum()) for code in (Extent.ALL, Extent.SOME, Extent.NONE))
    return runs


@pytest.mark.parametrize(
    ("name", "sizes"), [(n, sizes) for sizes in SIZES for n in ZOO if fits(n, *sizes[2:])], ids=str
)
def test_every_mask(name: str, sizes: tuple[int, int, int, int]) -> None:
    for blocks in [(1, 1), (3, 2), (64, 64)]:
        check(ZOO[name](*sizes), *sizes[2:], *blocks)


@given(st.data())
def test_compositions(data: st.DataObject) -> None:
    q_len = data.draw(st.integers(1, 40))
    sizes = (2, 3, q_len, data.draw(st.sampled_from([q_len, q_len + 5, 40])))
    check(data.draw(compositions(sizes)), *sizes[2:], 3, 2)


def test_neighbours_are_one_run() -> None:
    """Causal, 8 blocks of 4: each row of blocks has those before the diagonal as one run, and the diagonal."""
    runs = check(masks.causal(), 32, 32, 4, 4)
    assert runs.lo.tolist() == [0, *(x for i in range(1, 8) for x in (0, i))]
    assert runs.hi.tolist() == [1, *(x for i in range(1, 8) for x in (i, i + 1))]


def test_cells_are_evaluated_for_the_smallest_blocks_alone() -> None:
    looked: list[int] = []

    def sees(b: object, h: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        looked.append((q + k).numel())
        return (q + k) % 2 == 0

    mask = masks.from_predicate(sees) & masks.window(3, 0)
    check(mask, 64, 64, 4, 4)
    looked.clear()
    mask.aligned(64, 64).runs_of_blocks(64, 64, 2)
    assert sum(looked) == 4 * (
        32 + 2 * 31 - 1
    )  # the blocks of 2 × 2 that the window allows partly: 3 of a row, 94 in all


def bits_of(mask: Mask, q_len: int, k_len: int) -> tuple[torch.Tensor, int]:
    """The mask that the native kernels get, dense, and how many patterns it has."""
    runs = find_sight(mask.aligned(q_len, k_len), q_len, k_len).runs
    assert runs is not None
    tiles, blocks = -(-q_len // SIZE), -(-k_len // SIZE)
    found = torch.zeros(*runs.matrix.shape, tiles * SIZE, blocks * SIZE, dtype=torch.bool)
    bits = np.unpackbits(runs.words.view(np.uint8), axis=-1, bitorder="little").reshape(-1, SIZE, SIZE)
    for (b, h), matrix in np.ndenumerate(runs.matrix):
        for tile in range(tiles):
            for run in range(runs.tiles[matrix + tile], runs.tiles[matrix + tile + 1]):
                place, number, word = runs.runs[run]
                assert runs.runs[run + 1][0] > place
                for block in range(number, number + runs.runs[run + 1][0] - place):
                    cells = torch.from_numpy(bits[word // SIZE]).bool() if word >= 0 else True
                    found[b, h, tile * SIZE : (tile + 1) * SIZE, block * SIZE : (block + 1) * SIZE] = cells
    return found[:, :, :q_len, :k_len], len(runs.words)


IDS = [[0] * 100 + [1] * 60 + [2] * 140, [0] * 30 + [1] * 269 + [-1]]
OF_BITS = {
    "window and global tokens": (lambda: masks.window(70, 0) | masks.global_tokens([0, 131]), 300, 300),
    "documents, causal": (lambda: masks.documents(IDS) & masks.causal(), 300, 300),
    "padding, causal": (lambda: masks.lengths([300, 130]) & masks.causal(), 300, 300),
    "a prefix": (lambda: masks.prefix(100), 300, 300),
    "dilated": (lambda: masks.dilated(3) & masks.window(150, 0), 260, 300),
    "not": (lambda: ~masks.window(90, 10), 200, 300),
    "picked rows": (
        lambda: masks.picked(masks.causal(offset=0), torch.arange(0, 300, 3), torch.arange(300)),
        100,
        300,
    ),
    "of each head": (lambda: masks.from_tensor(torch.arange(3 * 300 * 300).view(3, 300, 300) % 7 < 2), 300, 300),
}


@pytest.mark.parametrize("name", OF_BITS)
def test_bits(name: str) -> None:
    make, q_len, k_len = OF_BITS[name]
    found, _ = bits_of(make(), q_len, k_len)
    expected = make().to_bool(q_len, k_len)
    assert torch.equal(found, expected.expand_as(found))


def test_blocks_that_look_the_same_share_their_bits() -> None:
    """The diagonal of causal documents of 128, and the edges of a window with a global token."""
    documents = masks.documents(torch.arange(1024) // 128) & masks.causal()
    assert bits_of(documents, 1024, 1024)[1] == 1
    # In a row of blocks, the window's left edge, its diagonal, and the first key; in the first row also every query.
    sparse = masks.window(64, 0) | masks.global_tokens([0])
    assert bits_of(sparse, 1024, 1024)[1] <= 8


@given(st.data())
def test_bits_of_compositions(data: st.DataObject) -> None:
    sizes = (2, 3, data.draw(st.sampled_from([1, 64, 70])), 130)
    mask = data.draw(compositions(sizes))
    if mask.aligned(*sizes[2:]).band() is None:
        found, _ = bits_of(mask, *sizes[2:])
        assert torch.equal(found, mask.to_bool(*sizes[2:]).expand_as(found)), mask
