"""The two norms that transformers use, as Keras layers."""

from __future__ import annotations

from typing import Any

import keras

from headwise.nn.options import check_known


def make_norm(norm: str, *, eps: float, bias: bool = True, **kwargs: Any) -> keras.layers.Layer:
    """Make a norm over the last axis: `norm` is "layer" (Ba et al. 2016) or "rms" (Zhang & Sennrich 2019)."""
    check_known("norm", norm, ("rms", "layer"))
    if norm == "rms":
        layer = keras.layers.RMSNormalization(epsilon=eps, **kwargs)
        layer.supports_masking = True  # tokens are independent; Keras does not set this, and would warn of a lost mask
        return layer
    return keras.layers.LayerNormalization(epsilon=eps, center=bias, **kwargs)
