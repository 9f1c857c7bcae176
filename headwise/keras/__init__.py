"""Attention as Keras 3 layers, on TensorFlow, JAX and PyTorch. Each layer is the twin of a module of `headwise.nn`.

A layer and its twin have the same options and compute the same numbers.

    import headwise.keras

    layer = headwise.keras.MultiHeadAttention(512, 8)
    y = layer(x, attention_mask=masks.causal())

Importing the package registers the layers with Keras, so that saved models with them can be loaded.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from headwise.extras import install

if importlib.util.find_spec("keras") is None:
    raise ImportError(f"headwise.keras needs Keras: {install('keras')}")

from headwise.keras import layer, positions
from headwise.keras.as_torch import as_torch, store
from headwise.keras.bert import Bert
from headwise.keras.drop_path import DropPath
from headwise.keras.feed_forward import FeedForward
from headwise.keras.functional import scaled_dot_product_attention
from headwise.keras.latent import LatentAttention
from headwise.keras.multi_head import MultiHeadAttention
from headwise.keras.multi_head_latent import MultiHeadLatentAttention
from headwise.keras.transformer_layer import DecoderLayer, EncoderLayer

__all__ = [
    "Bert",
    "DecoderLayer",
    "DropPath",
    "EncoderLayer",
    "FeedForward",
    "LatentAttention",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "as_torch",
    "positions",
    "scaled_dot_product_attention",
    "store",
]


def _conversions() -> Any:
    from headwise.keras import convert

    return convert


layer.conversions = _conversions


def __dir__() -> list[str]:
    return __all__
