"""Masks kept at one bit a cell, and runs kept at two numbers a query."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise import masks
from headwise.errors import DtypeError, HeadwiseError, MaskError
from headwise.masks import Extent
from headwise.masks.bits import (
    Bits,
    _pack_by_shifts,
    _unpack_by_shifts,
    make_bits,
    packed_bits,
    row_blocks,
    unpacked_bits,
)

DIAGONAL = torch.eye(3, 10, dtype=torch.bool)


def test_eight_cells_make_a_byte_the_lowest_bit_first() -> None:
    mask = masks.bits(DIAGONAL)
    assert mask.packed.tolist() == [[[[1, 0], [2, 0], [4, 0]]]]
    assert mask.k_len == 10
    last = masks.bits(torch.tensor([[False] * 9 + [True]]))
    assert last.packed.tolist() == [[[[0, 2]]]]
    assert last.allows(0, 0, 0, 9) is True
    assert last.allows(0, 0, 0, 8) is False


def test_it_takes_an_eighth_of_the_memory_and_keeps_no_hold_on_the_tensor() -> None:
    dense = torch.rand(2, 3, 16, 64) > 0.5
    mask, before = masks.bits(dense), dense.clone()
    assert mask.packed.numel() == dense.numel() // 8
    dense.fill_(True)
    assert torch.equal(mask.to_bool(16, 64), before)


@given(st.data())
def test_every_way_to_ask_agrees_with_the_dense_mask(data: st.DataObject) -> None:
    B, H, Q, K = (data.draw(st.integers(1, n)) for n in (2, 3, 9, 35))
    dense = torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))) > 0.5
    mask = masks.bits(dense)
    assert (mask.batch or 1, mask.heads or 1) == (B, H)
    assert torch.equal(mask.to_bool(Q, K), dense)
    assert torch.equal(mask.seen_keys(Q, K), dense.any(2))
    rows, cols = (torch.randint(n, (5,)) for n in (Q, K))
    assert torch.equal(mask.cells(rows, cols), dense[:, :, rows][..., cols])
    lo = data.draw(st.integers(0, K - 1))
    cols = torch.arange(lo, data.draw(st.integers(lo, K)))
    assert torch.equal(mask.cells(rows, cols, b=B - 1, h=H - 1), dense[-1:, -1:, rows][..., cols])
    block = data.draw(st.sampled_from([(3, 5), (4, 8), (2, 16), (128, 128)]))
    assert torch.equal(mask.blocks(Q, K, *block), masks.from_tensor(dense).blocks(Q, K, *block))
    assert mask == masks.bits(dense)
    assert mask != masks.bits(~dense)


@pytest.mark.parametrize("K", [1, 7, 8, 9, 16, 20])
def test_other_devices_pack_alike(K: int) -> None:
    dense = torch.rand(2, 1, 5, K) > 0.5
    packed = packed_bits(dense)
    assert torch.equal(_pack_by_shifts(dense), packed)
    assert torch.equal(_unpack_by_shifts(packed), unpacked_bits(packed))
    assert torch.equal(unpacked_bits(packed)[..., :K], dense)


def test_it_is_packed_in_blocks_of_rows() -> None:
    assert [(rows.start, rows.stop) for rows in row_blocks((2, 1, 5, 10), 40)] == [(0, 2), (2, 4), (4, 5)]
    assert [(rows.start, rows.stop) for rows in row_blocks((2, 1, 2, 10), 1)] == [(0, 1), (1, 2)]
    assert [(rows.start, rows.stop) for rows in row_blocks((1, 1, 0, 10))] == [(0, 0)]
    dense = torch.rand(2, 1, 5, 10) > 0.5
    assert make_bits(dense.split(2, dim=2), 10) == masks.bits(dense)


def test_strided_and_expanded_tensors_are_packed_as_they_read() -> None:
    dense = torch.rand(9, 12) > 0.5
    assert torch.equal(masks.bits(dense.T).to_bool(12, 9)[0, 0], dense.T)
    assert torch.equal(masks.bits(dense.expand(2, 3, 9, 12)).to_bool(9, 12), dense.expand(2, 3, 9, 12))


def test_it_says_what_it_is() -> None:
    mask = masks.bits(torch.ones(8, 8, dtype=torch.bool))
    assert repr(mask) == "bits(<allowed [1, 1, 8, 8]>)"
    assert repr(masks.causal() & mask) == "causal() & bits(<allowed [1, 1, 8, 8]>)"
    assert mask.natural_lengths() == (8, 8)
    assert mask.device == torch.device("cpu")
    assert mask.to("cpu") == mask
    assert isinstance(pickle.loads(pickle.dumps(mask)), Bits)
    assert copy.deepcopy(mask) == mask
    assert mask.allows(np.array([0, 0]), np.array([0, 0]), np.array([1, 2]), np.array([3, 4])).tolist() == [True, True]


def test_runs_read_as_they_are_written() -> None:
    mask = masks.runs([0, 1, 2], [2, 1, 4])
    assert mask.draw(3, 4) == "■ ■ · ·\n· · · ·\n· · ■ ■"
    assert repr(mask) == "runs([0, 1, 2], [2, 1, 4])"
    assert mask.natural_lengths() == (3, 4)
    by_example = masks.runs(torch.tensor([[[0, 0]], [[1, 1]]]), torch.tensor([[[2]]]))
    assert by_example.to_bool(2).int().tolist() == [[[[1, 1], [1, 1]]], [[[0, 1], [0, 1]]]]


def test_a_rectangle_in_the_gap_between_two_runs_is_empty() -> None:
    mask = masks.runs([0, 6, 3, 0], [2, 8, 3, 2]).aligned(4, 8)
    assert mask.extent(0, 4, 3, 5) is Extent.NONE
    assert mask.extent(0, 4, 1, 5) is Extent.SOME
    assert mask.extent(0, 4, 5, 7) is Extent.SOME  # neither the first nor the last row tells
    assert mask.extent(0, 1, 0, 2) is Extent.ALL
    assert mask.extent(0, 2, 0, 2) is Extent.SOME
    assert mask.extent(2, 3, 0, 8) is Extent.NONE
    mask = masks.runs([0, 6, 0, 3, 0], [2, 8, 2, 5, 2]).aligned(5, 8)
    tall_and_low = torch.tensor([0, 0]), torch.tensor([5, 3]), torch.tensor([5, 3]), torch.tensor([6, 5])
    assert mask.extent(*tall_and_low).tolist() == [[[Extent.NONE, Extent.NONE]]]


def test_the_bounds_of_rectangles_may_be_of_any_rank() -> None:
    mask = masks.runs([0, 6, 3, 0], [2, 8, 3, 2]).aligned(4, 8)
    corners = torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([[0], [6]]), torch.tensor([[2], [8]])
    assert mask.extent(*corners).tolist() == [[[[2, 0], [0, 2]]]]


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: masks.bits(torch.zeros(2, 2)), DtypeError, r"bits: expected a bool tensor.*Received: torch.float32"),
        (lambda: masks.bits([[True]]), DtypeError, r"Received: list"),
        (lambda: masks.bits(torch.ones(2, dtype=torch.bool)), MaskError, r"expected \[Q, K\].*Received: \[2\]"),
        (lambda: masks.bits(DIAGONAL).to_bool(3, 16), MaskError, r"for Q = 3 and K = 10"),
        (lambda: masks.bits(DIAGONAL).to_bool(4, 10), MaskError, r"Q = 4 and K = 10"),
        (lambda: masks.runs([0.5], [1]), DtypeError, r"runs: start: expected integers. Received: torch.float32"),
        (lambda: masks.runs([0], [[[[1]]]]), MaskError, r"runs: stop: expected rank 1 or 2 or 3"),
        (lambda: masks.runs([0, 1], [1, 2, 3]), MaskError, r"broadcast. Received: start=\[2\], stop=\[3\]"),
        (lambda: masks.runs([0, 2], [1, 1]), MaskError, r"0 <= start <= stop <= 2147483647 for every query"),
        (lambda: masks.runs([-1], [1]), MaskError, r"Received: \[-1, 1\)"),
        (lambda: masks.runs([0, 1], [1, 2]).to_bool(3), MaskError, r"made for Q = 2, the call has Q = 3"),
        (lambda: masks.runs([0, 1], [1, 9]).to_bool(2, 4), MaskError, r"within the 4 keys. Received: stop up to 9"),
    ],
)
def test_bad_input_is_named(make: object, kind: type[HeadwiseError], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()  # type: ignore[operator]
