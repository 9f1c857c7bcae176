"""The marks themselves: what a token and a source say, and what becomes of them where numbers meet."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from headwise.doctor.reading import marks
from headwise.doctor.reading.marks import MIXED, UNKNOWN, Marks, constant, merge, one, tensors_in


def seen(tokens: list[int], seed: int, *, live: bool = True) -> Marks:
    """The marks of a row of numbers that seed number `seed` made."""
    return Marks(torch.tensor(tokens), marks.elements(seed, (len(tokens),)), live)


def test_a_token_says_which_input_which_example_and_which_position() -> None:
    tokens = marks.token(2, (2, 3))
    assert marks.input_of(tokens).tolist() == [[2, 2, 2], [2, 2, 2]]
    assert marks.example_of(tokens).tolist() == [[0, 0, 0], [1, 1, 1]]
    assert marks.position_of(tokens).tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_source_says_which_element_of_which_seed() -> None:
    sources = marks.elements(5, (2, 2))
    assert marks.seed_of(sources).tolist() == [[5, 5], [5, 5]]
    assert marks.element_of(sources).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("part", [marks.input_of, marks.example_of, marks.position_of, marks.seed_of, marks.element_of])
def test_what_is_of_no_token_or_of_several_stays_so(part: object) -> None:
    assert part(torch.tensor([UNKNOWN, MIXED])).tolist() == [UNKNOWN, MIXED]  # type: ignore[operator]


def test_a_constant_is_of_no_token() -> None:
    found = constant((2, 2))
    assert found.token.unique().tolist() == found.source.unique().tolist() == [UNKNOWN]
    assert not found.live


def test_marks_move_with_their_tensor() -> None:
    first = dataclasses.replace(seen([4, 5], 1), names=frozenset({"w"}), factor=0.5, noise=True, sum_of=(3, (0,)))
    moved = first.move(lambda x: x.flip(0))
    assert moved.token.tolist() == [5, 4]
    assert marks.element_of(moved.source).tolist() == [1, 0]
    assert (moved.live, moved.names, moved.factor, moved.noise) == (True, {"w"}, 0.5, True)
    assert moved.sum_of is None  # which dims were summed is true of one layout only


# Numbers that meet.


def test_a_constant_changes_no_marks() -> None:
    both = merge([seen([7, 8], 1), constant((2,))], (2,))
    assert both.token.tolist() == [7, 8]
    assert marks.seed_of(both.source).tolist() == [1, 1]
    assert both.live


def test_the_later_source_wins_and_the_first_among_equals() -> None:
    for parts in ([seen([7, 7], 1), seen([7, 7], 3)], [seen([7, 7], 3), seen([7, 7], 1)]):
        assert marks.seed_of(merge(parts, (2,)).source).tolist() == [3, 3]
    first, second = seen([7, 7], 2), seen([7, 7], 2)
    second.source = second.source.flip(0)
    assert marks.element_of(merge([first, second], (2,)).source).tolist() == [0, 1]


def test_numbers_of_two_tokens_are_of_several() -> None:
    assert merge([seen([7, 8], 1), seen([7, 9], 1)], (2,)).token.tolist() == [7, MIXED]


def test_what_depends_on_the_inputs_comes_before_what_does_not() -> None:
    weight = dataclasses.replace(seen([UNKNOWN, UNKNOWN], 9, live=False), names=frozenset({"gain"}), factor=4.0)
    both = merge([seen([7, 8], 1), weight], (2,))
    assert marks.seed_of(both.source).tolist() == [1, 1]
    assert both.names == {"gain"}
    assert both.factor == 1.0


def test_operands_are_broadcast() -> None:
    both = merge([seen([7], 1), constant((2, 3))], (2, 3))
    assert both.token.tolist() == [[7, 7, 7], [7, 7, 7]]


def test_noise_and_factors_are_handed_on() -> None:
    noisy = dataclasses.replace(constant((2,)), noise=True)
    both = merge([dataclasses.replace(seen([7, 8], 1), factor=0.25), noisy], (2,))
    assert (both.noise, both.factor) == (True, 0.25)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([[3, 3]], [3]),
        ([[3, UNKNOWN]], [3]),  # a constant among them does not count
        ([[3, 4]], [MIXED]),
        ([[3, MIXED]], [MIXED]),
        ([[UNKNOWN, UNKNOWN]], [UNKNOWN]),
        ([[0, 0], [0, 1]], [0, MIXED]),
    ],
)
def test_the_one_token_along_a_dim(tokens: list[list[int]], expected: list[int]) -> None:
    assert one(torch.tensor(tokens), -1).tolist() == expected
    assert one(torch.tensor(tokens).T, 0).tolist() == expected


def test_tensors_are_found_among_nested_arguments_in_order() -> None:
    a, b, c = (torch.zeros(i) for i in range(3))
    found: list[Tensor] = tensors_in([a, (1, "x", [b]), {"k": c, "l": None}])
    assert [x.numel() for x in found] == [0, 1, 2]
