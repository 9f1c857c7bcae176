"""FlexAttention's BlockMask, made from rectangles, against the one torch makes by evaluating every cell."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from tests.mask_zoo import ZOO, fits

LENGTHS = [(256, 256), (128, 384), (200, 300), (100, 256)]


@pytest.mark.parametrize(("name", "lengths"), [(n, x) for x in LENGTHS for n in ZOO if fits(n, *x)], ids=str)
def test_the_block_mask_is_the_one_torch_would_make(name: str, lengths: tuple[int, int]) -> None:
    mask = ZOO[name](2, 3, *lengths)
    ours = mask.to_block_mask(*lengths)
    aligned = mask.aligned(*lengths)
    theirs = create_block_mask(
        lambda b, h, q, k: aligned.allows(b, h, q, k), mask.batch, mask.heads, *lengths, device="cpu"
    )
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    if name not in ("documents, in pieces", "strided"):
        assert torch.equal(full_blocks(ours), full_blocks(theirs))


def full_blocks(block_mask: object) -> torch.Tensor:
    counts, order = block_mask.full_kv_num_blocks, block_mask.full_kv_indices  # type: ignore[attr-defined]
    return torch.stack(
        [
            torch.zeros(order.shape[-1]).index_fill(0, row[:n].long(), 1)
            for n, row in zip(counts.flatten(), order.flatten(0, -2), strict=True)
        ]
    )
