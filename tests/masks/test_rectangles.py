"""The rectangle answers against the predicate: ALL and NONE are never wrong, and exact where a docstring says so."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise import masks
from headwise.masks import Extent, Mask
from tests.mask_zoo import ZOO, compositions, fits

SIZES = [(2, 3, 40, 40), (2, 3, 17, 40), (1, 3, 1, 9), (2, 3, 40, 17)]


def true_extents(mask: Mask, q_len: int, k_len: int, block_q: int, block_k: int) -> torch.Tensor:
    dense = mask.to_bool(q_len, k_len)
    rows = []
    for q in dense.split(block_q, dim=2):
        blocks = [block.flatten(2) for block in q.split(block_k, dim=3)]
        rows.append(
            torch.stack([block.any(-1).to(torch.int8) + block.all(-1).to(torch.int8) for block in blocks], dim=-1)
        )
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize(
    ("name", "sizes"), [(n, sizes) for sizes in SIZES for n in ZOO if fits(n, *sizes[2:])], ids=str
)
def test_every_mask_alone_answers_exactly(name: str, sizes: tuple[int, int, int, int]) -> None:
    mask = ZOO[name](*sizes)
    for blocks in [(8, 8), (5, 3), (1, 1), (64, 64)]:
        codes, truth = mask.blocks(*sizes[2:], *blocks), true_extents(mask, *sizes[2:], *blocks)
        if name in ("documents, in pieces", "strided"):  # the two that may say SOME: ids out of order; a composition
            assert ((codes == truth) | (codes == Extent.SOME)).all()
        else:
            assert torch.equal(codes, truth)


@given(st.data())
def test_compositions_never_claim_all_or_none_wrongly(data: st.DataObject) -> None:
    q_len = data.draw(st.integers(1, 40))
    sizes = (2, 3, q_len, data.draw(st.sampled_from([q_len, q_len + 5, 40])))
    mask = data.draw(compositions(sizes))
    codes, truth = mask.blocks(*sizes[2:], 7, 9), true_extents(mask, *sizes[2:], 7, 9)
    assert ((codes == truth) | (codes == Extent.SOME)).all(), mask


def test_rectangles_need_not_be_on_a_grid() -> None:
    mask = masks.causal().aligned(10, 10)
    assert mask.extent(3, 5, 0, 4) is Extent.ALL
    assert mask.extent(3, 5, 0, 5) is Extent.SOME
    assert mask.extent(0, 3, 3, 10) is Extent.NONE
    q_lo = torch.tensor([3, 3, 0])
    codes = mask.extent(q_lo, torch.tensor([5, 5, 3]), torch.tensor([0, 0, 3]), torch.tensor([4, 5, 10]))
    assert codes.tolist() == [[[Extent.ALL, Extent.SOME, Extent.NONE]]]


def test_a_predicate_is_evaluated_only_where_the_rest_leaves_it_open() -> None:
    asked = []

    def predicate(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        asked.append(torch.broadcast_tensors(q, k)[0].numel())
        return (q + k) % 2 == 0

    mask = masks.from_predicate(predicate) & masks.window(8, 0)
    mask.blocks(512, 512, 16)
    assert 0 < sum(asked) <= 2 * 512 * 16  # two blocks a row of blocks, not 512 × 512 cells
    asked.clear()
    mask.blocks(512, 512, 16)
    assert not asked  # and only once


def test_a_million_positions_make_no_dense_mask() -> None:
    n = 2**20
    mask = (masks.window(256, 0) | masks.global_tokens([0])) & masks.documents(torch.arange(n) // 4096)
    strip = mask.aligned(n, n).rectangles(
        torch.arange(0, n, 128)[:64, None],
        torch.arange(128, n + 1, 128)[:64, None],
        torch.arange(0, n, 128)[None],
        torch.arange(128, n + 1, 128)[None],
    )
    assert strip.shape == (1, 1, 64, n // 128)
    assert strip[0, 0, 40, 32:44].tolist() == [0] * 6 + [1, 2, 1] + [0] * 3  # the window of row block 40
    assert strip[0, 0, 3, 0] == Extent.SOME  # the global token
