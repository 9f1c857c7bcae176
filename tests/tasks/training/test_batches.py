"""Length buckets: everything once, nothing too large, the same again for the same seed and epoch."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headwise.tasks.batching import sorted_batches, training_batches
from headwise.tasks.training.batches import Shares

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=300)


def test_sorted_batches_are_filled_until_the_next_example_would_not_fit() -> None:
    # Sorted: 1 1 2 3 5 9. Two of length 2 or three up to 2 fit into 6 (3 × 2); with the 3 it would be 4 × 3 = 12.
    lengths = [3, 1, 9, 2, 1, 5]
    assert sorted_batches(lengths, tokens=6, size=None) == [[1, 4, 3], [0], [5], [2]]
    assert sorted_batches(lengths, tokens=100, size=2) == [[1, 4], [3, 0], [5, 2]]


def test_no_batch_has_fewer_examples_than_there_are_processes() -> None:
    assert sorted_batches([1, 1, 1, 1, 1], tokens=4, size=None, least=2) == [[0, 1, 2], [3, 4]]
    assert sorted_batches([9, 9, 9], tokens=9, size=None, least=2) == [[0, 1, 2]]
    assert sorted_batches([9, 9, 9, 9], tokens=9, size=1, least=2) == [[0, 1], [2, 3]]


@given(LENGTHS, st.integers(1, 200), st.none() | st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_has_every_example_once_in_batches_that_fit(
    lengths: list[int], tokens: int, size: int | None, epoch: int
) -> None:
    batches = training_batches(lengths, tokens=tokens, size=size, seed=1, epoch=epoch)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= tokens
        assert size is None or len(batch) <= size
    assert batches == training_batches(lengths, tokens=tokens, size=size, seed=1, epoch=epoch)


@given(LENGTHS, st.integers(1, 200), st.none() | st.integers(1, 9), st.integers(1, 4))
def test_validation_has_every_example_once_in_batches_of_all_processes(
    lengths: list[int], tokens: int, size: int | None, least: int
) -> None:
    batches = sorted_batches(lengths, tokens=tokens, size=size, least=least)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) >= min(least, len(lengths)) for batch in batches)


def test_epochs_and_seeds_differ() -> None:
    def batches(seed: int, epoch: int) -> list[list[int]]:
        return training_batches([3] * 40, tokens=12, size=None, seed=seed, epoch=epoch)

    assert batches(0, 0) != batches(0, 1)
    assert batches(0, 0) != batches(1, 0)


def test_buckets_leave_little_padding() -> None:
    lengths = [1 + place % 50 for place in range(5000)]
    batches = training_batches(lengths, tokens=1000, size=None, seed=0, epoch=0)
    padded = sum(len(batch) * max(lengths[place] for place in batch) for batch in batches)
    assert padded < 1.05 * sum(lengths)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_processes_share_each_batch(world: int) -> None:
    batches = [[5, 1, 2], [0], [4, 3]]
    shares = [list(Shares(batches, rank, world)) for rank in range(world)]
    for number, batch in enumerate(batches):
        assert sorted(place for share in shares for place in share[number]) == sorted(batch)


def test_a_resumed_epoch_leaves_out_what_was_done_but_counts_it() -> None:
    shares = Shares([[0], [1], [2]], done=2)
    assert list(shares) == [[2]]
    assert len(shares) == 3
