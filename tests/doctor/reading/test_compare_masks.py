"""Masks that are compared, on matrices that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headwise.doctor.reading import compare_masks
from headwise.doctor.reading.compare_masks import Difference, from_causal

N = 6
APART = compare_masks.distances(N, N)  # k - q


def lower(diagonal: int = 0, queries: int = N, keys: int = N) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(diagonal)


def blocks(size: int) -> Tensor:
    at = torch.arange(N) // size
    return at[:, None] >= at


@pytest.mark.parametrize(
    ("seen", "difference"),
    [
        (lower(), Difference("")),
        (lower() & ~lower(-3), Difference("")),  # a window hides more, and is causal
        (torch.eye(N, dtype=torch.bool), Difference("")),
        (lower().T, Difference("reversed")),
        (~lower(), Difference("reversed")),
        (lower(1), Difference("ahead", 1)),
        (lower(2), Difference("ahead", 2)),
        (lower(-1), Difference("behind", 1)),
        (lower(1) & ~lower(-3), Difference("other", 1)),
        (blocks(2), Difference("blocks")),
        (blocks(3), Difference("blocks")),
        (APART.abs() > 2, Difference("outside")),
        (APART < -2, Difference("outside")),
        (lower() | (APART > 2), Difference("gap", 2)),
        (torch.ones(N, N, dtype=torch.bool), Difference("other", 5)),
        (~torch.eye(N, dtype=torch.bool), Difference("other", 5)),  # all but itself
    ],
)
def test_from_causal(seen: Tensor, difference: Difference) -> None:
    assert from_causal(seen) == difference


def test_one_pair_of_the_future() -> None:
    seen = lower()
    seen[2, 5] = True
    assert from_causal(seen) == Difference("other", 3, 2)


def test_blocks_have_two_rows_at_least() -> None:
    at = torch.arange(N) // (N - 1)  # the last alone
    assert not compare_masks.is_in_blocks(at[:, None] >= at)


def test_a_band() -> None:
    assert compare_masks.band(lower(1)) == (-math.inf, 1)
    assert compare_masks.band(lower() & ~lower(-3)) == (-2, 0)
    assert compare_masks.band(APART.abs() <= 1) == (-1, 1)
    assert compare_masks.band(blocks(2)) is None


def test_a_corner() -> None:
    assert compare_masks.corner(lower(0, 3, 5)) == "first"
    assert compare_masks.corner(lower(2, 3, 5)) == "last"
    assert compare_masks.corner(lower(1, 3, 5)) == ""
    assert compare_masks.corner(torch.ones(3, 5, dtype=torch.bool)) == ""


def test_what_is_hidden_ahead() -> None:
    assert compare_masks.hidden_ahead(lower()) is None
    assert compare_masks.hidden_ahead(~torch.eye(N, dtype=torch.bool)) is None
    assert compare_masks.hidden_ahead(lower(2, 4, 9) | ~lower(5, 4, 9)) == Difference("gap", 3, 0)


def test_a_window_that_goes_round() -> None:
    previous = (APART == 0) | (APART == -1)
    assert compare_masks.goes_round(previous) is None
    round_ = previous | (APART == N - 1)  # query 0 sees key 5
    assert compare_masks.goes_round(round_).tolist() == [True] + [False] * 5
    assert compare_masks.goes_round(torch.ones(N, N, dtype=torch.bool)) is None


def test_rows_of_a_window_that_are_not_full() -> None:
    window = lower() & ~lower(-3)
    assert compare_masks.uneven_rows(window) is None
    window[2, 0] = False  # the window of 3 is not full in row 2
    assert compare_masks.uneven_rows(window) == (2, 3)
    assert compare_masks.uneven_rows(lower()) is None
