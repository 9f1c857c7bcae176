"""`eval(repr(mask)) == mask`, for every mask and composition whose tables are small enough to be written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from headwise import masks
from headwise.masks import Mask
from tests.mask_zoo import ZOO, _by_head, _near_and_even, compositions, fits

NAMES = {**vars(masks), "torch": torch, "_near_and_even": _near_and_even, "_by_head": _by_head}


def back(mask: Mask) -> Mask:
    return eval(repr(mask), dict(NAMES))


@pytest.mark.parametrize("sizes", [(1, 1, 4, 4), (2, 2, 2, 4), (1, 2, 1, 8), (2, 1, 4, 4)], ids=str)
@pytest.mark.parametrize("name", ZOO)
def test_every_mask_is_what_its_repr_makes(name: str, sizes: tuple[int, int, int, int]) -> None:
    if not fits(name, *sizes[2:]):
        return
    mask = ZOO[name](*sizes)
    assert "<" not in repr(mask)
    for each in (mask, mask.aligned(*sizes[2:]), ~mask):
        assert back(each) == each


@given(compositions((2, 1, 2, 4)))
def test_compositions_are_what_their_repr_makes(mask: Mask) -> None:
    for each in (mask, mask.aligned(2, 4), ~mask & masks.causal(1) | mask, ~(mask | ~mask)):
        assert back(each) == each


def test_an_aligned_mask_shows_its_offset() -> None:
    assert repr(masks.dilated(2).aligned(3, 5)) == "dilated(2, offset=2)"
    assert repr(masks.prefix(1).aligned(3, 5)) == "prefix(1, offset=2)"
    assert repr(masks.documents([0, 0, 1]).aligned(1, 3)) == "documents([0, 0, 1], offset=2)"
    assert repr(masks.global_tokens([0]).aligned(1, 3)) == "global_tokens([0], offset=2)"
    assert repr(masks.window(None, None, offset=3)) == "window(None, None, offset=3)"


def test_large_tables_show_their_shapes() -> None:
    assert repr(masks.padding(torch.ones(3, 11, dtype=torch.bool))) == "padding(<real [3, 11]>)"
    assert repr(masks.bits(torch.ones(6, 6, dtype=torch.bool))) == "bits(<allowed [1, 1, 6, 6]>)"
    assert repr(masks.documents(range(33))) == "documents(<ids [1, 33]>)"
    assert repr(masks.from_predicate(lambda b, h, q, k: q == k, heads=2)) == "from_predicate(<lambda>, heads=2)"


def test_big_bird_keeps_its_length_and_what_it_was_made_from() -> None:
    for mask in (masks.big_bird(20), masks.big_bird(999, block_size=8, window_blocks=5, random_blocks=0, seed=7)):
        assert back(mask) == mask
        assert back(mask).fixed_lengths == mask.fixed_lengths == mask.natural_lengths()


class Diagonal(Mask):
    """A mask of somebody else."""

    def allows(self, b: object, h: object, q: object, k: object) -> object:
        return q == k


def test_a_mask_of_somebody_else_shows_its_name() -> None:
    assert repr(masks.causal() & Diagonal()) == "causal() & Diagonal()"
