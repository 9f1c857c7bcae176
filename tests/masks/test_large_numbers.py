"""Numbers near the limits of int32 and int64 give the right answer, or an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise import masks
from headwise.errors import HeadwiseError
from headwise.masks import Extent, Mask

HUGE = [2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**70]


def agrees(mask: Mask, expected: torch.Tensor) -> None:
    """Dense cells, cells by int32 and by NumPy, blocks and used keys say `expected` [Q, K]."""
    q_len, k_len = expected.shape
    aligned = mask.aligned(q_len, k_len)
    assert torch.equal(mask.to_bool(q_len, k_len)[0, 0], expected)
    q, k = (torch.arange(n, dtype=torch.int32) for n in (q_len, k_len))
    assert torch.equal(aligned.cells(q, k)[0, 0], expected)
    q, k = np.arange(q_len, dtype=np.int32)[:, None], np.arange(k_len, dtype=np.int32)
    assert np.array_equal(np.broadcast_to(aligned.allows(q * 0, q * 0, q, k), expected.shape), expected.numpy())
    codes = mask.blocks(q_len, k_len, 1)[0, 0]
    assert torch.equal(codes == Extent.ALL, expected)
    assert torch.equal(codes == Extent.NONE, ~expected)
    used = mask.used_keys(q_len, k_len)
    assert torch.equal(torch.ones(k_len).bool() if used is None else used[0, 0], expected.any(0))


EVERY, NONE = torch.ones(3, 5, dtype=torch.bool), torch.zeros(3, 5, dtype=torch.bool)


@pytest.mark.parametrize("n", HUGE)
def test_a_window_beyond_all_keys_has_no_limit(n: int) -> None:
    agrees(masks.window(n, 0), masks.causal().to_bool(3, 5)[0, 0])
    agrees(masks.window(n, n), EVERY)
    agrees(masks.window(0, n), masks.window(0, None).to_bool(3, 5)[0, 0])


@pytest.mark.parametrize("n", HUGE)
def test_an_offset_beyond_all_keys(n: int) -> None:
    agrees(masks.causal(offset=n), EVERY)
    agrees(masks.causal(offset=-n), NONE)
    agrees(masks.window(1, 1, offset=n), NONE)
    agrees(masks.window(1, 1, offset=-n), NONE)
    agrees(masks.prefix(2, offset=n), EVERY)
    agrees(masks.prefix(2, offset=-n), EVERY & (torch.arange(5) < 2))
    agrees(masks.dilated(1, offset=n), EVERY)
    far = (torch.arange(3)[:, None] - torch.arange(5) + n % 3) % 3 == 0
    agrees(masks.dilated(3, offset=n), far)


@pytest.mark.parametrize("step", [2, 2**29, 2**30])
def test_a_large_step_keeps_the_diagonal_alone(step: int) -> None:
    expected = (torch.arange(3)[:, None] + 2 - torch.arange(5)) % step == 0
    agrees(masks.dilated(step), expected)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda n=n: masks.dilated(n) for n in HUGE[2:]),
        *(lambda n=n: masks.strided(n) for n in HUGE[2:]),
        *(lambda n=n: masks.lengths(n).to_bool(3, 5) for n in HUGE),
        *(lambda n=n: masks.prefix(n).to_bool(3, 5) for n in HUGE),
        *(lambda n=n: masks.global_tokens(n).to_bool(3, 5) for n in HUGE),
        *(lambda n=n: masks.documents([0] * 5, offset=n).to_bool(3, 5) for n in HUGE),
        *(lambda n=n: masks.runs([0] * 3, [n] * 3).to_bool(3, 5) for n in HUGE),
        lambda: masks.documents([2**64 - 1, 0]),
        lambda: masks.documents([0] * 5, offset=-1).to_bool(3, 5),
        lambda: masks.global_tokens([0], offset=3).to_bool(3, 5),
        lambda: masks.documents(torch.tensor([2**63 - 1] * 3).view(torch.uint64)),
    ],
)
def test_what_no_lengths_could_meet_is_refused(make: object) -> None:
    with pytest.raises(HeadwiseError):
        make()  # type: ignore[operator]


def test_ids_of_documents_may_be_any_integers() -> None:
    ids = [5, 2**31, 2**32 + 5, 2**62, 2**62, 2**63 - 1, 2**63 - 1, -(2**63), -1]
    table = torch.tensor(ids)
    agrees(masks.documents(ids), (table[:, None] == table) & (table[:, None] >= 0))
    assert masks.documents(ids).blocks(9, 9, 3)[0, 0].tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
