"""Dropout by the native kernels: the share that is kept, repeatable draws, the same places in the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headwise.native import dropout as native
from headwise.native.library import library

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_kept_is_divided_by_its_share_and_the_rest_is_0(each_set: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 10_001, generator=torch.Generator().manual_seed(0)).to(dtype)  # rows of 8192 and a remainder
    x.requires_grad_()
    torch.manual_seed(1)
    y = native.dropout(x, 0.3)
    kept = y != 0
    assert abs(kept.float().mean() - 0.7) < 0.006  # 3 standard deviations
    torch.testing.assert_close(y, torch.where(kept, x / 0.7, 0.0))
    y.backward(torch.ones_like(y))
    torch.testing.assert_close(x.grad, torch.where(kept, torch.ones_like(x) / 0.7, 0.0))


def test_draws_follow_from_the_seed_and_not_from_the_threads_or_the_instruction_set(each_set: str) -> None:
    x, before = torch.ones(300, 1000), torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        found.append(native.dropout(x, 0.5))
    torch.set_num_threads(before)
    assert torch.equal(*found)
    torch.manual_seed(3)
    seed = int(torch.randint(2**62, ()))
    places = [0, 1, 15, 16, 8191, 8192, 300_000 - 1]
    assert [found[0].flatten()[place] != 0 for place in places] == [is_kept(seed, place) for place in places]
    assert not torch.equal(native.dropout(x, 0.5), found[0])


def is_kept(seed: int, place: int) -> bool:
    """The hashes of src/dropout.hpp in Python's integers, for a probability of 1/2."""
    row, place = divmod(place, 8192)
    x = (seed + 0x9E3779B97F4A7C15 * (row + 1)) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    x = ((x >> 32) + place * 0x9E3779B9) % 2**32
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return (x ^ x >> 16) >= 2**31


def test_neighbours_and_rows_are_independent() -> None:
    torch.manual_seed(4)
    kept = (native.dropout(torch.ones(64, 8192), 0.5) != 0).double() * 2 - 1
    assert abs((kept[1:] * kept[:-1]).mean()) < 0.006
    for lag in (1, 2, 16, 64):
        assert abs((kept[:, lag:] * kept[:, :-lag]).mean()) < 0.006, lag  # 4 standard deviations of 524,288 pairs


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_none_and_all(probability: float, expected: float) -> None:
    x = torch.tensor([1.0, float("nan"), float("inf")])
    y = native.dropout(x, probability)
    assert torch.equal(y.nan_to_num(7.0), x.nan_to_num(7.0) if expected else torch.zeros(3))


def test_second_derivatives() -> None:
    x = torch.randn(40, dtype=torch.float32, requires_grad=True)
    torch.manual_seed(5)
    y = native.dropout(x, 0.4).square().sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    kept = first != 0
    torch.testing.assert_close(second, torch.where(kept, 2 / 0.36, 0.0))


def test_a_mode_sees_the_call_and_changes_no_number() -> None:
    seen = []

    class Listens(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((function.__name__, *args[1:]))
            return function(*args, **(kwargs or {}))

    x = torch.ones(100)
    torch.manual_seed(7)
    expected = native.dropout(x, 0.5)
    torch.manual_seed(7)
    with Listens():
        found = native.dropout(x, 0.5)
    assert torch.equal(found, expected)
    assert seen[0] == ("dropout", 0.5, True)


def test_strides_and_no_numbers() -> None:
    x = torch.randn(30, 20)
    torch.manual_seed(6)
    y = native.dropout(x.T, 0.2)
    torch.manual_seed(6)
    torch.testing.assert_close(y, native.dropout(x.T.contiguous(), 0.2))
    assert native.dropout(torch.empty(0, 3), 0.2).shape == (0, 3)


def test_what_is_refused() -> None:
    assert native.refuse(torch.ones(2)) is None
    assert native.refuse(torch.ones(2, dtype=torch.float64)) == "they have no float64"
    assert "run on the CPU" in (native.refuse(torch.ones(2, device="meta")) or "")
    loaded = library()
    assert loaded is not None
    for bad, message in [
        ((0, 0, 1, 4, 0.5, 0, 8, 8), "another"),
        ((64, 3, 1, 4, 0.5, 0, 8, 8), "dtype"),
        ((64, 0, 0, 4, 0.5, 0, 8, 8), "size"),
        ((64, 0, 1, 4, 1.5, 0, 8, 8), "dropout"),
        ((64, 0, 1, 4, 0.5, 0, 0, 8), "missing"),
        ((64, 0, 1, 4, 0.5, 0, 9, 9), "aligned"),
        ((64, 0, 1, 4, 0.5, 0, 8, 12), "overlaps"),
    ]:
        code = loaded.hw_dropout_of(native._LAYOUT.pack(*bad))
        assert message in loaded.hw_error(code).decode(), bad
