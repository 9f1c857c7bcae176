"""One layer of a transformer: attention and a feed-forward network, each added to its input.

`EncoderLayer` reads one sequence (with a causal mask it is a layer of GPT); `DecoderLayer` also reads a second.
Each takes any attention layer of this package, or makes a `MultiHeadAttention`.
"""

from __future__ import annotations

from typing import Any

import keras

from headwise import nn
from headwise.keras.layer import Parts, Tensor, check_input, compute_positions
from headwise.keras.residual import Attend, ResidualLayer, seeds
from headwise.keras.saving import PACKAGE
from headwise.masks import Mask
from headwise.nn.residual import has_positions
from headwise.nn.transformer_layer import check_memory_dim, check_ready


@keras.saving.register_keras_serializable(PACKAGE)
class EncoderLayer(ResidualLayer, twin=nn.EncoderLayer):
    """Self-attention, then a feed-forward network. Vaswani et al. 2017, figure 1, left.

        norm_first       x = x + Attention(Norm(x)),   y = x + FFN(Norm(x))      Xiong et al. 2020, figure 1 b
        not norm_first   x = Norm(x + Attention(x)),   y = Norm(x + FFN(x))      as in 2017

    The Keras twin of `headwise.nn.EncoderLayer`.

    >>> layer = EncoderLayer(512, 8)
    >>> layer = EncoderLayer(512, attention=MultiHeadAttention(512, 8, num_kv_heads=2, positions=positions.Rope(64)))
    >>> y = layer(x, attention_mask=masks.causal())                  # x, y: [B, S, M]

    Args: as of `headwise.nn.EncoderLayer`, and
        attention: any layer with the call arguments of the attention layers of `headwise.keras`.
        seed: the seed of dropout. A layer passed as `attention` has its own seed.

    Its sublayers are `attention`, `attention_norm`, `mlp`, `mlp_norm`, `dropout` and `drop_path`.

    Raises:
        ArgumentError: dimensions that are not divisible, an unknown option, or both num_heads and attention.
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        check_ready(o.num_heads, o.attention_dropout, o.attention, what="layers")
        within, between = seeds(seed, 2)
        self.attention = self._attention("attention", o, seed=within)
        self.attention_norm = self._norm("attention_norm", o)
        self._make_mlp(o, between)

    def _parts(self) -> Parts:
        return [(self.attention, self.dim), (self.attention_norm, self.dim), *super()._parts()]

    def call(
        self,
        query: Tensor,
        query_mask: Tensor | None = None,
        attention_mask: Mask | Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        position_ids: Tensor | None = None,
    ) -> Any:
        """Compute the output of the layer for a sequence.

        Args:
            query: [B, S, M].
            query_mask: [B, S], True = a real token; no position attends to padding. Keras passes the mask of
                `Embedding(mask_zero=True)` and `Masking` itself, and it is also the mask of the output.
            attention_mask: which position may attend to which, True or 1 = may: a mask of `headwise.masks`, or a tensor
                [Q, K], [B, Q, K] or [B, H, Q, K].
            return_attention_scores: also return the attention weights.
            training: whether dropout is active.
            use_causal_mask: also forbid every position to attend to later positions.
            position_ids: [S] or [B, S], the positions of the tokens, if not 0, 1, 2 … (padding does not count).

        Returns:
            [B, S, M]; with `return_attention_scores=True` (output, weights [B, H, S, S]).

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
        """
        check_input("query", query, self.dim)
        given = {"query_mask": query_mask, "attention_mask": attention_mask, "use_causal_mask": use_causal_mask}
        attend = Attend(self.attention, return_attention_scores, position_ids=position_ids, training=training, **given)
        x = self._add(query, self.attention_norm, attend, training)
        y = self._add_mlp(x, training)
        return (y, attend.weights) if return_attention_scores else y

    def compute_output_spec(
        self, query: Any, return_attention_scores: bool = False, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        """Return the shapes of the outputs of `call`, without computing the outputs."""
        check_input("query", query, self.dim)
        given = {"position_ids": position_ids, "return_attention_scores": return_attention_scores}
        return self.attention.compute_output_spec(query, **given)


@keras.saving.register_keras_serializable(PACKAGE)
class DecoderLayer(ResidualLayer, twin=nn.DecoderLayer):
    """Self-attention, attention to another sequence (the memory), then a feed-forward network.

    Vaswani et al. 2017, figure 1, right. The memory is the output of an encoder; it is not normalised here. Norms are
    placed as in `EncoderLayer`. The Keras twin of `headwise.nn.DecoderLayer`.

    >>> layer = DecoderLayer(512, 8)
    >>> y = layer(x, memory, use_causal_mask=True)                   # x, y: [B, Q, M]; memory: [B, K, M]

    Args: as of `headwise.nn.DecoderLayer`, and
        self_attention, cross_attention: attention layers to use instead of new ones with `num_heads`; either or both.
        seed: as for `EncoderLayer`.

    Its sublayers are `self_attention`, `self_attention_norm`, `cross_attention`, `cross_attention_norm`, `mlp`,
    `mlp_norm`, `dropout` and `drop_path`.

    Raises:
        ArgumentError: dimensions that are not divisible, or an unknown option.
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        check_ready(o.num_heads, o.attention_dropout, o.self_attention, o.cross_attention, what="layers")
        own, other, between = seeds(seed, 3)
        self.self_attention = self._attention("self_attention", o, seed=own)
        self.self_attention_norm = self._norm("self_attention_norm", o)
        check_memory_dim(o.memory_dim, o.cross_attention)
        self.cross_attention = self._attention("cross_attention", o, seed=other, kdim=o.memory_dim)
        self.cross_attention_norm = self._norm("cross_attention_norm", o)
        self._make_mlp(o, between)

    def _parts(self) -> Parts:
        norms = (self.self_attention_norm, self.cross_attention_norm)
        own = [(part, self.dim) for part in (self.self_attention, self.cross_attention, *norms)]
        return [*own, *super()._parts()]

    def call(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        attention_mask: Mask | Tensor | None = None,
        memory_mask: Mask | Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        position_ids: Tensor | None = None,
    ) -> Any:
        """Compute the output of the layer for a sequence and a memory.

        Args:
            query: [B, Q, M].
            value: [B, K, memory_dim], the memory.
            query_mask: [B, Q], True = a real token of the sequence. Keras passes it, and it is also the mask of the
                output.
            value_mask: [B, K], True = a real token of the memory. Keras passes it.
            attention_mask: which position of the sequence may attend to which, True or 1 = may: a mask of
                `headwise.masks`, or a tensor [Q, Q], [B, Q, Q] or [B, H, Q, Q].
            memory_mask: which position may attend to which position of the memory, in the same form, with K columns.
            return_attention_scores: also return the attention weights.
            training: whether dropout is active.
            use_causal_mask: also forbid every position of the sequence to attend to later positions.
            position_ids: [Q] or [B, Q], the positions of the tokens, if not 0, 1, 2 … (padding does not count).

        Returns:
            [B, Q, M]; with `return_attention_scores=True` (output, weights of self-attention [B, H, Q, Q], weights of
            cross-attention [B, H, Q, K]).

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
        """
        self._check_memory(query, value, self.cross_attention)
        only_other = has_positions(self.cross_attention) and not has_positions(self.self_attention)
        given: dict[str, Any] = {"query_mask": query_mask, "attention_mask": attention_mask, "training": training}
        given |= {"position_ids": None if only_other else position_ids, "use_causal_mask": use_causal_mask}
        attend = Attend(self.self_attention, return_attention_scores, **given)
        ids = None
        if has_positions(self.cross_attention):  # the scheme does not know which queries are padding
            ids = compute_positions(query, query_mask, position_ids)
        given = {"attention_mask": memory_mask, "value_mask": value_mask, "position_ids": ids, "training": training}
        read = Attend(self.cross_attention, return_attention_scores, value=value, **given)
        x = self._add(query, self.self_attention_norm, attend, training)
        x = self._add(x, self.cross_attention_norm, read, training)
        y = self._add_mlp(x, training)
        return (y, attend.weights, read.weights) if return_attention_scores else y

    def compute_output_spec(
        self, query: Any, value: Any, return_attention_scores: bool = False, position_ids: Any = None, **kwargs: Any
    ) -> Any:
        """Return the shapes of the outputs of `call`, without computing the outputs."""
        self._check_memory(query, value, self.cross_attention)
        only_other = has_positions(self.cross_attention) and not has_positions(self.self_attention)
        ids, wanted = None if only_other else position_ids, {"return_attention_scores": return_attention_scores}
        own = self.self_attention.compute_output_spec(query, position_ids=ids, **wanted)
        other = self.cross_attention.compute_output_spec(query, value, **wanted)
        return (*own, other[1]) if return_attention_scores else own
