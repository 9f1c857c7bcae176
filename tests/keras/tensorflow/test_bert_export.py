"""A model around a BERT as a SavedModel, which serves any batch and length."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from headwise.keras import Bert
from headwise.models import BertConfig
from tests.keras.parity import close

pytestmark = pytest.mark.every_backend

CONFIG = BertConfig(vocab_size=13, dim=8, num_layers=1, num_heads=2, ffn_dim=16, max_positions=9)


def test_a_saved_model_serves_any_length(tmp_path: Path) -> None:
    ids = keras.Input((None,), dtype="int32")
    _, pooled = Bert(CONFIG)(ids, real=ops.not_equal(ids, 0), return_pooled=True)
    model = keras.Model(ids, keras.layers.Dense(2)(pooled))
    model.export(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    for given in (np.array([[2, 5, 6, 0, 0], [2, 3, 4, 5, 6]], np.int32), np.array([[2, 7, 3]], np.int32)):
        close(served.serve(given), model(given))
