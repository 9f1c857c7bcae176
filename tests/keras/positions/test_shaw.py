"""Shaw's relative positions in Keras: equal to PyTorch's, beside keys and values, whole and in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headwise.errors import ArgumentError
from headwise.keras.positions import ShawRelative
from headwise.nn import positions as torch_positions
from tests.keras.backend import array, tensor
from tests.keras.parity import copy_weights

IDS = [np.arange(7), np.array([[0, 0, *range(5)], [*range(7)]])]


def pair(*args: Any, **options: Any) -> tuple[torch_positions.ShawRelative, ShawRelative]:
    twin, scheme = torch_positions.ShawRelative(*args, **options), ShawRelative(*args, **options)
    copy_weights(twin, scheme)
    return twin, scheme


def test_by_hand() -> None:
    # Vectors of distances -1, 0 and 1 or more: 1, 10 and 100 in one dimension; q = 2, 3 and the scale is 1.
    scheme = ShawRelative(1, 1, values=True)
    scheme.build()
    for table in (scheme.distance_embedding, scheme.value_embedding):
        table.embeddings.assign(np.array([[1.0], [10], [100]]))
    q, rows, cols = np.array([2.0, 3]).reshape(1, 1, 2, 1), tensor(np.arange(2)), tensor(np.arange(3))
    assert array(scheme.bias(tensor(q), rows, cols))[0, 0].tolist() == [[20, 200, 200], [3, 30, 300]]
    weights = np.array([[0.5, 0.25, 0.25], [0, 1, 0]]).reshape(1, 1, 2, 3)
    assert array(scheme.values(tensor(weights), rows, cols))[0, 0].tolist() == [[55], [10]]


@pytest.mark.parametrize("ids", IDS, ids=["one-for-all", "batch"])
@pytest.mark.parametrize("distance", [2, (3, 1), (0, 2)], ids=str)
def test_same_as_pytorch(distance: Any, ids: np.ndarray) -> None:
    twin, scheme = pair(4, distance, values=True, value_dim=5)
    q, weights, keys = torch.randn(2, 3, 7, 4), torch.rand(2, 3, 7, 6), ids[..., :6]
    for scale in (None, 0.3):
        want = twin.bias(q, torch.tensor(ids), torch.tensor(keys), scale=scale).detach()
        got = scheme.bias(tensor(q), tensor(ids), tensor(keys), scale=scale)
        np.testing.assert_allclose(array(got), want, atol=1e-5)
    want = twin.values(weights, torch.tensor(ids), torch.tensor(keys)).detach()
    got = scheme.values(tensor(weights), tensor(ids), tensor(keys))
    np.testing.assert_allclose(array(got), want, atol=1e-5)


@pytest.mark.parametrize("ids", IDS, ids=["one-for-all", "batch"])
def test_blocks_are_parts_of_the_whole(ids: np.ndarray) -> None:
    _, scheme = pair(4, 2)
    rows, cols = np.array([[0, 1], [4, 5], [6, 6]]), np.array([[0, 1, 2], [3, 4, 5], [0, 5, 6]])
    q = np.random.default_rng(0).normal(size=(2, 3, 7, 4))
    whole = array(scheme.bias(tensor(q), tensor(ids), tensor(ids)))
    got = array(scheme.bias(tensor(q[:, :, rows]), tensor(ids[..., rows]), tensor(ids[..., cols])))
    np.testing.assert_allclose(got, whole[:, :, rows[..., None], cols[:, None]], atol=1e-6)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="max_distance"):  # the twin's checks
        ShawRelative(4, 0)
    with pytest.raises(ArgumentError, match="head_dim=4"):
        ShawRelative(4, 2).check(2, 8)
