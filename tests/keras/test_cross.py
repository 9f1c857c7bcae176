"""A layer that reads another sequence: the same numbers and gradients as in PyTorch, masks, shapes, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise import masks
from headwise.errors import ArgumentError, ShapeError
from headwise.keras.cross import CrossLayer
from headwise.nn import cross
from tests.keras.backend import array, tensor
from tests.keras.parity import assert_same, close, draw

Q, K = 3, 7
REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])


def test_masks() -> None:
    allowed = np.random.default_rng(0).random((2, Q, K)) > 0.4
    allowed[0, 1] = False
    assert_same(
        *(CrossLayer(8, 2), cross.CrossLayer(8, 2), draw(2, Q, 8), draw(2, K, 8)),
        ours={"attention_mask": tensor(allowed), "value_mask": tensor(REAL)},
        theirs={"mask": torch.tensor(allowed[:, None]), "real": torch.tensor(REAL)},
    )


def test_weights() -> None:
    layer = CrossLayer(8, 2)
    x, memory = tensor(draw(2, Q, 8)), tensor(draw(2, K, 8))
    out, weights = layer(x, memory, attention_mask=masks.window(2, 2), return_attention_scores=True)
    close(out, layer(x, memory, attention_mask=masks.window(2, 2)))
    seen = array(weights) > 0
    assert (seen == masks.window(2, 2).to_bool(Q, K).numpy()).all()


def test_bad_input() -> None:
    layer, x = CrossLayer(8, 2, memory_dim=6), tensor(draw(2, Q, 8))
    with pytest.raises(ArgumentError, match="value: expected the memory"):
        layer(x, None)
    with pytest.raises(ShapeError, match="value: expected the batch size of query"):
        layer(x, tensor(draw(3, K, 6)))
    with pytest.raises(ArgumentError, match="memory_dim: expected a whole number"):
        CrossLayer(8, 2, memory_dim=0)
