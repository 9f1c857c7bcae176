"""How far an export's outputs are from the model's, in numbers that can be followed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from headwise.errors import ExportError
from headwise.export.comparing import check, compare


def test_the_largest_difference_in_units_of_the_spread() -> None:
    expected = [tensor([[1.0, -1.0], [1.0, -1.0]]), tensor([[1.0, -1.0]])]  # a standard deviation of 1
    found = compare("logits", expected, [expected[0], tensor([[1.0, 1.5]])])
    assert (found.largest, found.spread, found.relative) == (2.5, 1.0, 2.5)
    assert found.agreement == pytest.approx(2 / 3)  # of three rows the last has another entry that is largest
    with pytest.raises(ExportError, match=r"model: output 'logits' .* 2\.5 at most, .* at most 1\."):
        check("model", [found], 1.0)


def test_the_mean_difference_may_be_an_eighth_of_the_tolerance() -> None:
    found = compare("logits", [tensor([1.0, -1.0, 1.0, -1.0])], [tensor([1.0, -1.0, 1.0, 1.0])])
    assert (found.largest, found.typical) == (2.0, 1.0)  # the root of 4 / 4
    with pytest.raises(ExportError, match=r"by 1 on average, .* at most 0\.5\."):
        check("model", [found], 4.0)
    check("model", [found], 8.0)


@pytest.mark.parametrize(
    ("expected", "received", "largest"),
    [
        (tensor([0.0, math.inf]), tensor([0.0, math.inf]), 0.0),
        (tensor([0.0, -math.inf]), tensor([0.0, 0.0]), math.inf),
        (tensor([0.0, 1.0]), tensor([0.0, math.nan]), math.inf),
        (tensor([0.0, math.nan]), tensor([0.0, math.nan]), 0.0),
        (tensor([1, 2]), tensor([1, 4]), 2.0),
        (torch.empty(0), torch.empty(0), 0.0),
    ],
)
def test_numbers_that_are_none(expected: Tensor, received: Tensor, largest: float) -> None:
    assert compare("x", [expected], [received]).largest == largest


def test_what_stands_for_never_has_no_part_in_the_spread() -> None:
    lowest = torch.finfo(torch.float32).min
    assert compare("x", [tensor([1.0, -1.0, lowest])], [tensor([1.0, -1.0, lowest])]).spread == 1.0


def test_equal_values_are_judged_by_their_size() -> None:
    assert compare("x", [tensor([4.0, 4.0])], [tensor([4.0, 5.0])]).relative == 0.25
    assert compare("x", [tensor([0.0])], [tensor([1.0])]).relative == math.inf


def test_another_shape_or_dtype_is_said() -> None:
    with pytest.raises(ExportError, match=r"x: expected float32 \[2\]\. Received: float32 \[3\]"):
        compare("x", [torch.zeros(2)], [torch.zeros(3)])
    with pytest.raises(ExportError, match=r"Received: float16 \[2\]"):
        compare("x", [torch.zeros(2)], [torch.zeros(2, dtype=torch.float16)])
    with pytest.raises(ExportError, match=r"expected 1 results\. Received: 0"):
        compare("x", [torch.zeros(2)], [])


def test_both_parts_of_a_complex_number_are_compared() -> None:
    wanted = torch.tensor([1 + 1j, 2 - 1j])
    assert compare("out", [wanted], [wanted.conj()]).largest == 2.0
