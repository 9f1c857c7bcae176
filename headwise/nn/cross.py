"""One layer in which a sequence reads another sequence: attention to it, then a feed-forward network.

Perceivers and Set Transformers are built of it. It is a decoder layer without self-attention.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.nn import options
from headwise.nn.cache import Cache, bind
from headwise.nn.feed_forward import Activation
from headwise.nn.inputs import check_input, check_value
from headwise.nn.multi_head import MultiHeadAttention
from headwise.nn.residual import ResidualLayer, find_child, make_norm
from headwise.nn.trace import Trace


class CrossLayer(ResidualLayer):
    """Attention to another sequence, then a feed-forward network.

        norm_first       x = x + Attention(Norm(x), Norm(memory)),   y = x + FFN(Norm(x))      Jaegle et al. 2021
        not norm_first   x = Norm(x + Attention(x, memory)),         y = Norm(x + FFN(x))      MAB(x, memory) of
                                                                            Lee et al. 2019, equations 6 and 7

    >>> layer = CrossLayer(512, 8, memory_dim=768)
    >>> y = layer(x, memory, real=real)                           # x, y: [B, Q, M]; memory: [B, K, memory_dim]

    Args:
        dim: M.
        num_heads: H.
        memory_dim: dimensions of the memory (the sequence that is read); None = M.
        head_dim, value_head_dim: D (of queries and keys) and E (of values) of each head; None = M / H, and D.
        ffn_dim: the hidden dimension of the feed-forward network; None = 4 M, or 8/3 M if gated (see `FeedForward`).
        norm_first: True = a norm before each branch, and one for the memory; False = a norm after each sum.
        query_residual: whether x is added to the output of attention. Use False if a query only says what output is
            wanted, such as the output for a position (Perceiver IO, section 3.2).
        activation: the activation of the feed-forward network.
        dropout: of the attention weights, in the feed-forward network and of the output of each branch; only in
            training.
        scale: factor on q kᵀ; None = 1/√D.
        norm_eps: the epsilon of the norms.
        bias: whether attention, feed-forward network and LayerNorm have biases.
        kernel: "auto", or the name of a kernel, as for `headwise.attention`.

    Its submodules are `attention`, `attention_norm`, `memory_norm` (None unless norm_first), `mlp` and `mlp_norm`.

    Raises:
        ArgumentError: dimensions that are not divisible, an unknown option.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        memory_dim: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        ffn_dim: int | None = None,
        norm_first: bool = True,
        query_residual: bool = True,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        scale: float | None = None,
        norm_eps: float = 1e-5,
        bias: bool = True,
        kernel: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, norm_first)
        self.memory_dim = options.whole("memory_dim", dim if memory_dim is None else memory_dim)
        self.query_residual = query_residual
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.attention = MultiHeadAttention(
            *(dim, num_heads),
            kdim=self.memory_dim,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            dropout=dropout,
            scale=scale,
            kernel=kernel,
            **factory,
        )
        self.attention_norm = make_norm("layer", dim, norm_eps, **factory)
        self.memory_norm = make_norm("layer", self.memory_dim, norm_eps, **factory) if norm_first else None
        self._make_mlp(ffn_dim, activation, "layer", norm_eps, factory, dropout=dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
        *,
        real: Tensor | None = None,
        record: bool = False,
    ) -> Any:
        """Compute the output of the layer for queries that attend to a memory.

        Args:
            query: [B, Q, M].
            key: [B, K, memory_dim], the memory. It must be given.
            value: must be None. The argument exists so that all modules of this package have the same arguments.
            mask: which query may read which position, True = may: of `headwise.masks`, or bool [Q, K], [H, Q, K] or
                [B, H, Q, K].
            cache: keeps the projections of the memory, for later queries.
            real: bool or integers [B, K], True or 1 = a real token of the memory, False or 0 = padding.
            record: also return the record of the attention.

        Returns:
            [B, Q, M]; with `record=True` (output, Seen).

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
            CacheError: the cache belongs to another module or another memory.
        """
        trace = Trace(record)
        return trace.result(self.run(trace, query, key, value, cache, mask=mask, real=real))

    def run(
        self, trace: Trace, query: Tensor, key: Tensor | None, value: Tensor | None, cache: Cache | None, **given: Any
    ) -> Tensor:
        """Do what `forward` does, for a caller that collects records in its own `trace`."""
        if key is None:
            raise ArgumentError("key: expected the memory [B, K, memory_dim]. Received: key=None")
        check_value(key, value)
        check_input("query", query, self.dim, linear=self.attention.out)
        check_input("key", key, self.memory_dim, batch=query.shape[0], linear=self.attention.out)
        bind(cache, self)
        memory = key if self.memory_norm is None else self.memory_norm(key)
        read = partial(trace, self.attention, "attention", key=memory, cache=find_child(cache, "attention"), **given)
        x = self._add(query, self.attention_norm, read, residual=self.query_residual)
        return self._add(x, self.mlp_norm, self.mlp)

    def extra_repr(self) -> str:
        """Return the options that the repr of the submodules does not show."""
        residual = "" if self.query_residual else ", query_residual=False"
        return f"{super().extra_repr()}, memory_dim={self.memory_dim}{residual}"
