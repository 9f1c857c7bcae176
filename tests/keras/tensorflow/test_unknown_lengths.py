"""Lengths that a traced function does not know: what works, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from headwise import masks
from headwise.errors import MaskError
from headwise.keras import MultiHeadAttention
from tests.keras.backend import array, tensor
from tests.keras.parity import draw

pytestmark = pytest.mark.every_backend


def traced(layer: MultiHeadAttention, **given: Any) -> Any:
    spec = tf.TensorSpec((None, None, 8))
    return tf.function(lambda q, memory: layer(q, memory, **given), input_signature=[spec, spec], autograph=False)


def test_a_mask_that_puts_the_last_query_at_the_last_key_needs_both_lengths() -> None:
    layer = MultiHeadAttention(8, 2)
    layer.build()
    q, memory = tensor(draw(2, 3, 8)), tensor(draw(2, 5, 8))
    with pytest.raises(MaskError, match="it needs both lengths"):
        traced(layer, attention_mask=masks.causal())(q, memory)
    for mask in (masks.causal(offset=0), masks.lengths([5, 2]), masks.causal(offset=0) & masks.lengths([5, 2])):
        found = traced(layer, attention_mask=mask)(q, memory)
        np.testing.assert_allclose(array(found), array(layer(q, memory, attention_mask=mask)), atol=1e-6)
