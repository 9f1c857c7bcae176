"""The feed-forward network of a transformer layer, plain or gated, applied to each position separately."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import ops

from headwise import nn
from headwise.errors import DtypeError, ShapeError
from headwise.keras.layer import Layer, Parts, Tensor
from headwise.keras.saving import PACKAGE
from headwise.nn import options
from headwise.nn.feed_forward import GATED, checked_widths

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": ops.relu,
    "gelu": partial(ops.gelu, approximate=False),
    "gelu_tanh": partial(ops.gelu, approximate=True),
    "silu": ops.silu,
}


@keras.saving.register_keras_serializable(PACKAGE)
class FeedForward(Layer, twin=nn.FeedForward):
    """Two linear maps with an activation between, or three with a gate. The Keras twin of `headwise.nn.FeedForward`.

        plain   y = W_down act(W_up x)                  Vaswani et al. 2017, equation 2
        gated   y = W_down (act(W_gate x) ⊙ W_up x)     Shazeer 2020 (GLU Variants), equation 6

    Args: as of `headwise.nn.FeedForward`, and
        seed: the seed of dropout.

    Its sublayers are `up`, `down` and, if gated, `gate`.

    Raises:
        ArgumentError: a dimension below 1, an unknown activation, a dropout outside of [0, 1).
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        self.dim, self.hidden_dim = checked_widths(o.dim, o.hidden_dim, o.activation)
        self.activation = o.activation
        self.gate = self.dense(self.hidden_dim, name="gate", bias=o.bias) if o.activation in GATED else None
        self.up = self.dense(self.hidden_dim, name="up", bias=o.bias)
        self.down = self.dense(self.dim, name="down", bias=o.bias)
        self.dropout = keras.layers.Dropout(
            options.probability("dropout", o.dropout), seed=seed, name="dropout", dtype=self.dtype_policy
        )
        self._act = _PLAIN[GATED.get(o.activation, o.activation)]

    def _parts(self) -> Parts:
        return [(self.gate, self.dim), (self.up, self.dim), (self.down, self.hidden_dim)]

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Compute the output [..., M] for inputs [..., M].

        Raises:
            ShapeError, DtypeError: the input has another width, or is not a tensor.
        """
        self._check(inputs)
        up = self.up(inputs)
        hidden = self._act(up) if self.gate is None else self._act(self.gate(inputs)) * up
        return self.down(self.dropout(hidden, training=training))

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        """Return the shape of the output of `call`, without computing the output."""
        self._check(inputs)
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def _check(self, inputs: Any) -> None:
        shape = getattr(inputs, "shape", None)
        if shape is None:
            raise DtypeError(f"inputs: expected a tensor [..., {self.dim}]. Received: {type(inputs).__name__}")
        if len(shape) < 2 or shape[-1] != self.dim:
            raise ShapeError(f"inputs: expected [..., {self.dim}]. Received: inputs.shape={tuple(shape)}")
