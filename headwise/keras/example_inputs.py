"""Makes example inputs for one call of a Keras model, from the input shapes that the model declares."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops, tree

from headwise.errors import ArgumentError

BATCH, LENGTH, PADDED = 2, 7, 2  # the last tokens of the second example are padding


def example_inputs(model: keras.Model) -> Any:
    """Make a batch of two examples, in the nested structure of the model's inputs.

    They are token ids if the model has embeddings, else random numbers. A size that the model does not declare is 7.
    The last two tokens of the second example are padding: 0 in ids, False in masks.

    Raises:
        ArgumentError: the model declares no shapes.
    """
    tables = [x.input_dim for x in model._flatten_layers() if isinstance(x, keras.layers.Embedding)]
    dice = np.random.default_rng(0)

    def made(shape: tuple[int | None, ...], dtype: str, name: str) -> Any:
        sizes = [BATCH, *(LENGTH if n is None else n for n in shape[1:])]
        if dtype == "bool" or "mask" in name:
            values: Any = np.ones(sizes)
        elif "segment" in name or "type" in name:
            values = np.zeros(sizes)
        elif "int" in dtype or (tables and len(sizes) == 2):
            values = dice.integers(1, max(min(tables, default=8), 2), sizes)
        else:
            return ops.convert_to_tensor(dice.standard_normal(sizes), dtype=dtype)
        if len(sizes) == 2 and sizes[1] > PADDED:
            values[1, -PADDED:] = 0
        return ops.convert_to_tensor(values, dtype=dtype)

    stated = getattr(model, "_inputs_struct", None)
    if stated is None:
        stated = getattr(model, "inputs", None)
        stated = stated[0] if isinstance(stated, list) and len(stated) == 1 else stated
    if stated is not None:
        return tree.map_structure(lambda x: made(tuple(x.shape), x.dtype, x.name.lower()), stated)
    shapes = [x for x in (getattr(model, "_build_shapes_dict", None) or {}).values() if x]
    if len(shapes) == 1 and all(isinstance(n, int | None) for n in shapes[0]):
        return made(tuple(shapes[0]), "float32", "")
    raise ArgumentError(
        f"model: expected one with inputs of known shapes. Received: a {type(model).__name__} that states none. Name a "
        "function that returns the model and its inputs, as in my_model.py:make_model"
    )
