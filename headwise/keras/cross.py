"""A layer of attention to another sequence (the memory), followed by a feed-forward network.

Perceivers and Set Transformers are made of it. It is a decoder layer without self-attention.
"""

from __future__ import annotations

from typing import Any

import keras

from headwise.keras.layer import Parts, Tensor
from headwise.keras.multi_head import MultiHeadAttention
from headwise.keras.residual import Attend, ResidualLayer, seeds
from headwise.keras.saving import PACKAGE
from headwise.masks import Mask
from headwise.nn import cross, options


@keras.saving.register_keras_serializable(PACKAGE)
class CrossLayer(ResidualLayer, twin=cross.CrossLayer):
    """Attention to another sequence, then a feed-forward network. The Keras twin of `headwise.nn.CrossLayer`.

        norm_first       x = x + Attention(Norm(x), Norm(memory)),   y = x + FFN(Norm(x))      Jaegle et al. 2021
        not norm_first   x = Norm(x + Attention(x, memory)),         y = Norm(x + FFN(x))      MAB(x, memory) of
                                                                            Lee et al. 2019, equations 6 and 7

    >>> layer = CrossLayer(512, 8, memory_dim=768)
    >>> y = layer(x, memory, value_mask=real)                        # x, y: [B, Q, M]; memory: [B, K, memory_dim]

    Args: as of `headwise.nn.CrossLayer`, and
        kernel: "auto", or the name of a kernel, as for `scaled_dot_product_attention`.
        seed: the seed of dropout.

    Its sublayers are `attention`, `attention_norm`, `memory_norm` (None unless norm_first), `mlp` and `mlp_norm`.

    Raises:
        ArgumentError: dimensions that are not divisible, or an unknown option.
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        self.memory_dim = options.whole("memory_dim", o.dim if o.memory_dim is None else o.memory_dim)
        self.query_residual = o.query_residual
        within, between = seeds(seed, 2)
        names = ("num_heads", "head_dim", "value_head_dim", "bias", "dropout", "scale", "kernel")
        heads = {name: getattr(o, name) for name in names} | {"kdim": self.memory_dim, "seed": within}
        self.attention = MultiHeadAttention(self.dim, **heads, name="attention", dtype=self.dtype_policy)
        self.attention_norm = self._norm("attention_norm", o)
        self.memory_norm = self._norm("memory_norm", o) if o.norm_first else None
        self._make_mlp(o, between)

    def _parts(self) -> Parts:
        memory = (self.memory_norm, self.memory_dim)
        return [(self.attention, self.dim), (self.attention_norm, self.dim), memory, *super()._parts()]

    def call(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        attention_mask: Mask | Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Compute the output of the layer for queries that attend to a memory.

        Args:
            query: [B, Q, M].
            value: [B, K, memory_dim], the memory.
            query_mask: [B, Q], True = a real token; it is also the mask of the output. Keras passes it.
            value_mask: [B, K], True = a real token of the memory; only real tokens are read. Keras passes it.
            attention_mask: which query may attend to which position, True or 1 = may: a mask of `headwise.masks`, or a
                tensor [Q, K], [B, Q, K] or [B, H, Q, K].
            return_attention_scores: also return the attention weights.
            training: whether dropout is active.

        Returns:
            [B, Q, M]; with `return_attention_scores=True` (output, weights [B, H, Q, K]).

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
        """
        self._check_memory(query, value, self.attention)
        memory = value if self.memory_norm is None else self.memory_norm(value)
        given = {"attention_mask": attention_mask, "value_mask": value_mask, "training": training}
        read = Attend(self.attention, return_attention_scores, value=memory, **given)
        x = self._add(query, self.attention_norm, read, training, residual=self.query_residual)
        y = self._add_mlp(x, training)
        return (y, read.weights) if return_attention_scores else y

    def compute_output_spec(self, query: Any, value: Any, return_attention_scores: bool = False, **kwargs: Any) -> Any:
        """Return the shapes of the outputs of `call`, without computing the outputs."""
        self._check_memory(query, value, self.attention)
        return self.attention.compute_output_spec(query, value, return_attention_scores=return_attention_scores)
