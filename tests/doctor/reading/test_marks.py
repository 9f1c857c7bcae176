"""The marks themselves: what a token and a source say, and what becomes of them where numbers meet."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from headwise.doctor.reading import marks
from headwise.doctor.reading.marks import MIXED, UNKNOWN, Marks, constant, merge, one


def seen(tokens: list[int], seed: int, *, live: bool = True) -> Marks:
    """The marks of a row of numbers that seed number `seed` made."""
    return Marks(torch.tensor(tokens), marks.elements(seed, (len(tokens),)), live)


def test_a_token_says_which_input_which_example_and_which_position() -> None:
    tokens = marks.token(2, (2, 3))
    assert marks.input_of(tokens).tolist() == [[2, 2, 2], [2, 2, 2]]
    assert marks.example_of(tokens).tolist() == [[0, 0, 0], [1, 1, 1]]
    assert marks.position_of(tokens).tolist() == [[0, 1, 2], [0, 1, 2]]
    sources = marks.elements(5, (2, 2))
    assert marks.seed_of(sources).tolist() == [[5, 5], [5, 5]]
    assert marks.element_of(sources).tolist() == [[0, 1], [2, 3]]
    for part in (marks.input_of, marks.example_of, marks.position_of, marks.seed_of, marks.element_of):
        assert part(torch.tensor([UNKNOWN, MIXED])).tolist() == [UNKNOWN, MIXED]


def test_marks_move_with_their_tensor() -> None:
    first = dataclasses.replace(seen([4, 5], 1), names=frozenset({"w"}), factor=0.5, noise=True, sum_of=(3, (0,)))
    moved = first.move(lambda x: x.flip(0))
    assert moved.token.tolist() == [5, 4]
    assert (moved.live, moved.names, moved.factor, moved.noise) == (True, {"w"}, 0.5, True)
    assert moved.sum_of is None  # which dims were summed is true of one layout only


@pytest.mark.parametrize(
    ("parts", "tokens", "seeds"),
    [
        ([seen([7, 8], 1), constant((2,))], [7, 8], [1, 1]),
        ([seen([7, 7], 3), seen([7, 7], 1)], [7, 7], [3, 3]),  # the later source wins
        ([seen([7, 8], 1), seen([7, 9], 1)], [7, MIXED], [1, 1]),
        ([seen([7, 8], 1), seen([UNKNOWN, UNKNOWN], 9, live=False)], [7, 8], [1, 1]),  # a parameter
        ([seen([7], 1), constant((2,))], [7, 7], [1, 1]),  # broadcast
    ],
)
def test_numbers_that_meet(parts: list[Marks], tokens: list[int], seeds: list[int]) -> None:
    both = merge(parts, (2,))
    assert both.token.tolist() == tokens
    assert marks.seed_of(both.source).tolist() == seeds
    assert both.live


def test_noise_names_and_factors_are_handed_on() -> None:
    weight = dataclasses.replace(constant((2,)), noise=True, names=frozenset({"gain"}), factor=4.0)
    both = merge([dataclasses.replace(seen([7, 8], 1), factor=0.25), weight], (2,))
    assert (both.noise, both.names, both.factor) == (True, {"gain"}, 0.25)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([[3, UNKNOWN]], [3]),  # a constant among them does not count
        ([[3, MIXED]], [MIXED]),
        ([[UNKNOWN, UNKNOWN]], [UNKNOWN]),
        ([[0, 0], [0, 1]], [0, MIXED]),
    ],
)
def test_the_one_token_along_a_dim(tokens: list[list[int]], expected: list[int]) -> None:
    assert one(torch.tensor(tokens), -1).tolist() == expected
