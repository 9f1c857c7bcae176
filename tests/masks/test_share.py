"""The mask of some examples and heads is the mask's answers for these, whatever it is made of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from headwise import masks
from headwise.masks import Mask
from headwise.masks.share import cut_share
from tests.mask_zoo import ZOO

SIZES = (4, 6, 24, 24)


def check(mask: Mask) -> None:
    for examples, heads in ((slice(1, 3), slice(2, 6)), (slice(3, 4), slice(0, 1)), (slice(0, 4), slice(3, 6))):
        part, counts = cut_share(mask, examples, heads), (examples.stop - examples.start, heads.stop - heads.start)
        assert part.batch in (None, counts[0])
        assert part.heads in (None, counts[1])
        wanted = mask.to_bool(*SIZES[2:]).expand(*SIZES)[examples, heads]
        assert torch.equal(part.to_bool(*SIZES[2:]).expand_as(wanted), wanted)
        for code, block in zip(part.blocks(24, 24, 8).expand(*counts, 3, 3).flatten(), _blocks(wanted), strict=True):
            assert code == 1 or bool(block.all() if code == 2 else ~block.any())


def _blocks(allowed: torch.Tensor) -> torch.Tensor:
    return allowed.unflatten(3, (3, 8)).unflatten(2, (3, 8)).transpose(3, 4).flatten(0, 3)


@pytest.mark.parametrize("name", ZOO)
def test_of_every_mask(name: str) -> None:
    mask = ZOO[name](*SIZES)
    check(mask)
    check(~mask & masks.causal())
    check(masks.lengths([3, 9, 24, 1]) | mask)


def test_of_a_mask_that_was_aligned_or_picked() -> None:
    mask = ZOO["runs, by example and head"](*SIZES).aligned(24, 24)
    check(mask)
    rows = torch.tensor([1, 2, 9, 23])
    some = masks.picked(mask, rows, rows)
    wanted = mask.to_bool(24)[1:3, 2:4][:, :, rows][..., rows]
    assert torch.equal(cut_share(some, slice(1, 3), slice(2, 4)).to_bool(4), wanted)


def test_of_a_mask_of_somebodys_own() -> None:
    @dataclasses.dataclass(frozen=True, eq=False, repr=False)
    class Diagonals(Mask):
        sizes: tuple[int, int] = (4, 6)
        batch = property(lambda self: self.sizes[0])  # type: ignore[assignment]
        heads = property(lambda self: self.sizes[1])  # type: ignore[assignment]

        def allows(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q + k) % (b + h + 2) == 0

    check(Diagonals())


def test_what_all_share_is_kept() -> None:
    mask = masks.causal() & masks.documents([0, 0, 1, 1])
    assert cut_share(mask, slice(0, 1), slice(2, 3)) is mask
    several = masks.lengths([1, 2]).owned()
    assert cut_share(several, slice(0, 2), slice(1, 2)) is several
    assert cut_share(several, slice(1, 2), slice(0, 1)) is cut_share(several, slice(1, 2), slice(0, 1))
