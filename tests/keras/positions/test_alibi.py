"""ALiBi in Keras: by hand, whole and in blocks, and short where the mask looks only backwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise import masks
from headwise.errors import ArgumentError, ShapeError
from headwise.keras.positions import Alibi
from headwise.nn import positions as torch_positions
from tests.keras.backend import array, tensor

BATCH = np.array([[0, 0, 1, 2], [0, 1, 2, 3]])


def test_by_hand() -> None:
    # Two heads: slopes 2^-4 and 2^-8.
    bias = array(Alibi(2).bias(tensor(np.zeros((1, 2, 2, 4))), tensor(np.array([1, 2])), tensor(np.arange(3))))
    distance = np.array([[1, 0, 1], [2, 1, 0]])
    np.testing.assert_allclose(bias, np.stack([-distance / 16, -distance / 256])[None])


@pytest.mark.parametrize("heads", [1, 4, 6, 12])
@pytest.mark.parametrize("ids", [np.arange(4), BATCH], ids=["one-for-all", "batch"])
def test_same_as_pytorch(heads: int, ids: np.ndarray) -> None:
    q = np.zeros((2, heads, 4, 2))
    twin = torch_positions.Alibi(heads, 6.0)
    for mask in (None, masks.causal(), masks.window(1, 1), masks.causal() & masks.lengths(torch.tensor([3, 4]))):
        want = twin.bias(torch.tensor(q).float(), torch.tensor(ids), torch.tensor(ids), mask=mask)
        got = array(Alibi(heads, 6.0).bias(tensor(q), tensor(ids), tensor(ids), mask=mask))
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("ids", [np.arange(8), np.array([[0, *range(7)], [*range(8)]])], ids=["one-for-all", "batch"])
def test_blocks_are_parts_of_the_whole(ids: np.ndarray) -> None:
    rows, cols = np.array([[0, 1], [4, 5], [7, 7]]), np.array([[0, 1, 2], [3, 4, 5], [0, 6, 7]])
    whole = array(Alibi(4).bias(tensor(np.zeros((2, 4, 8, 2))), tensor(ids), tensor(ids)))
    got = Alibi(4).bias(tensor(np.zeros((2, 4, 3, 2, 2))), tensor(ids[..., rows]), tensor(ids[..., cols]))
    assert np.array_equal(array(got), whole[:, :, rows[..., None], cols[:, None]])


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="max_bias"):  # the twin's checks
        Alibi(4, -1.0)
    with pytest.raises(ArgumentError, match="positions: expected a module with num_heads=4"):
        Alibi(4).check(8, 16)
    with pytest.raises(ShapeError, match="query_ids"):
        Alibi(4).bias(tensor(np.zeros((2, 4, 3, 2))), tensor(np.arange(4)), tensor(np.arange(3)))
