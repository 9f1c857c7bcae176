"""T5's buckets in Keras: every bucket ends where PyTorch's does, and the table learns."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch

from headwise.errors import ArgumentError
from headwise.keras.positions import T5Buckets
from headwise.nn import positions as torch_positions
from tests.keras.backend import array, tensor
from tests.keras.parity import copy_weights

OPTIONS: dict[str, dict[str, Any]] = {
    "t5": {},
    "decoder": {"bidirectional": False},
    "few": {"num_buckets": 4, "max_distance": 5},
    "many": {"num_buckets": 320, "max_distance": 800},
    "far": {"num_buckets": 20, "max_distance": 9000, "bidirectional": False},
}


def pair(heads: int = 2, **options: Any) -> tuple[torch_positions.T5Buckets, T5Buckets]:
    twin, scheme = torch_positions.T5Buckets(heads, **options), T5Buckets(heads, **options)
    copy_weights(twin, scheme)
    return twin, scheme


def test_buckets_by_hand() -> None:
    # 8 buckets, 4 a side: distances 0 and 1 have one each, then 2 + floor(2 · ln(d/2) / ln(8/2)), at most 3.
    distances = np.array([-100, -4, -3, -2, -1, 0, 1, 2, 3, 4, 100])
    both = T5Buckets(1, num_buckets=8, max_distance=8)
    assert array(both.buckets(tensor(distances))).tolist() == [3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_bucket_is_the_twins(options: str) -> None:
    distances = torch.arange(-10000, 10001)
    want = torch_positions.T5Buckets(1, **OPTIONS[options]).buckets(distances)
    assert np.array_equal(array(T5Buckets(1, **OPTIONS[options]).buckets(tensor(distances))), want)


def test_bias_whole_and_in_blocks() -> None:
    twin, scheme = pair(num_buckets=8, max_distance=5)
    rows, cols = np.array([[0, 1], [4, 5], [7, 7]]), np.array([[0, 1, 2], [3, 4, 5], [0, 6, 7]])
    for ids in (np.arange(8), np.array([[0, *range(7)], [*range(8)]])):
        q = np.zeros((2, 2, 8, 4), np.float32)
        whole = twin.bias(torch.tensor(q), torch.tensor(ids), torch.tensor(ids)).detach()
        assert np.array_equal(array(scheme.bias(tensor(q), tensor(ids), tensor(ids))), whole)
        blocks = tensor(np.zeros((2, 2, 3, 2, 4)))
        got = array(scheme.bias(blocks, tensor(ids[..., rows]), tensor(ids[..., cols])))
        assert np.array_equal(got, whole[:, :, rows[..., None], cols[:, None]])


@pytest.mark.every_backend
def test_mixed_precision_does_not_round_the_table() -> None:
    scheme = T5Buckets(2, dtype="mixed_bfloat16")
    scheme.build()
    ids = tensor(np.arange(3))
    assert keras.backend.standardize_dtype(scheme.bias(tensor(np.zeros((1, 2, 3, 4))), ids, ids).dtype) == "float32"


def test_making_one_draws_nothing_of_pytorchs_numbers() -> None:
    before = torch.get_rng_state()
    T5Buckets(2)
    assert torch.equal(before, torch.get_rng_state())


def test_bad_options_are_those_of_the_twin() -> None:
    with pytest.raises(ArgumentError, match="num_buckets"):
        T5Buckets(2, num_buckets=7)
