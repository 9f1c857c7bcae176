"""The base class of transformer layers: branches that are added to their input (the last is a feed-forward network)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from headwise.errors import ArgumentError
from headwise.keras.drop_path import DropPath
from headwise.keras.feed_forward import FeedForward
from headwise.keras.layer import Layer, Parts, Tensor, check_input
from headwise.keras.multi_head import MultiHeadAttention
from headwise.keras.norm import make_norm
from headwise.nn import options
from headwise.nn.transformer_layer import choose_attention


class ResidualLayer(Layer):
    """A layer made of branches, each added to its input. A subclass creates its attention, then calls `_make_mlp`.

    `_make_mlp` sets `mlp`, `mlp_norm`, `dropout` and `drop_path`.
    """

    mlp: FeedForward
    mlp_norm: keras.layers.Layer
    dropout: keras.layers.Dropout
    drop_path: DropPath

    def _begin(self, *args: Any, **kwargs: Any) -> Any:
        """Also set the options that all such layers have. In the result, options that only some have get defaults."""
        o = super()._begin(*args, **kwargs)
        self.dim, self.norm_first = options.whole("dim", o.dim), o.norm_first
        return SimpleNamespace(**({"norm": "layer", "ffn_dropout": None, "drop_path": 0.0} | vars(o)))

    def _attention(self, name: str, o: Any, **more: Any) -> Any:
        """Return the attention layer that was passed as the option `name`, or a new MultiHeadAttention."""
        dropout = o.dropout if o.attention_dropout is None else o.attention_dropout
        given = {"dropout": dropout, "bias": o.bias, "name": name, "dtype": self.dtype_policy}
        make = partial(MultiHeadAttention, **given, **more)
        return choose_attention(name, getattr(o, name), o.dim, o.num_heads, make, keras.layers.Layer, "layer")

    def _make_mlp(self, o: Any, seed: int | None) -> None:
        within = o.dropout if o.ffn_dropout is None else o.ffn_dropout
        first, second, third = seeds(seed, 3)
        given: dict[str, Any] = {"activation": o.activation, "dropout": within, "bias": o.bias, "seed": first}
        self.mlp = FeedForward(self.dim, o.ffn_dim, name="mlp", dtype=self.dtype_policy, **given)
        self.mlp_norm = self._norm("mlp_norm", o)
        self.dropout = keras.layers.Dropout(
            options.probability("dropout", o.dropout), seed=second, name="dropout", dtype=self.dtype_policy
        )
        self.drop_path = DropPath(
            options.probability("drop_path", o.drop_path), seed=third, name="drop_path", dtype=self.dtype_policy
        )

    def _check_memory(self, query: Any, value: Any, attention: Any) -> None:
        """Raise an error unless the queries and the memory (`value`) fit this layer and its attention to the memory."""
        check_input("query", query, self.dim)
        if value is None:
            raise ArgumentError("value: expected the memory [B, K, memory_dim]. Received: value=None")
        width = getattr(attention, "kdim", None)
        check_input("value", value, value.shape[-1] if width is None else width, batch=query.shape[0])

    def _norm(self, name: str, o: Any) -> keras.layers.Layer:
        return make_norm(o.norm, eps=o.norm_eps, bias=o.bias, name=name, dtype=self.dtype_policy)

    def _parts(self) -> Parts:
        return [(self.mlp, self.dim), (self.mlp_norm, self.dim)]

    def _add(
        self,
        x: Tensor,
        norm: keras.layers.Layer,
        branch: Callable[[Tensor], Tensor],
        training: bool | None,
        *,
        residual: bool = True,
    ) -> Tensor:
        """Return x plus the branch's output, with the norm before the branch or after the sum. residual=False: no x."""
        found = self.dropout(branch(norm(x) if self.norm_first else x), training=training)
        found = self.drop_path(found, training=training)
        y = x + found if residual else found
        return y if self.norm_first else norm(y)

    def _add_mlp(self, x: Tensor, training: bool | None) -> Tensor:
        """Return x plus the output of the feed-forward network."""
        return self._add(x, self.mlp_norm, lambda x: self.mlp(x, training=training), training)


class Attend:
    """A branch: an attention layer with all its arguments but the queries. It stores the weights if they are wanted."""

    def __init__(self, attention: keras.layers.Layer, wants_weights: bool, **given: Any) -> None:
        self.attention, self.wants_weights, self.given = attention, wants_weights, given
        self.weights: Tensor = None

    def __call__(self, x: Tensor) -> Tensor:
        if not self.wants_weights:
            return self.attention(x, **self.given)
        out, self.weights = self.attention(x, return_attention_scores=True, **self.given)
        return out


def seeds(seed: int | None, count: int) -> list[int | None]:
    """Make a list of `count` independent seeds from one seed; a list of None if `seed` is None."""
    if seed is None:
        return [None] * count
    drawn = np.random.SeedSequence(options.whole("seed", seed, 0)).generate_state(count)
    return [int(each) & 0x7FFFFFFF for each in drawn]  # PyTorch's seeds are int32
