"""One layer of a transformer: attention and a feed-forward network, each added to its input.

`EncoderLayer` reads one sequence (with a causal mask it is a layer of GPT); `DecoderLayer` also reads a second.
Each takes any attention module of this package, or makes a `MultiHeadAttention`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.nn.cache import Cache, bind
from headwise.nn.feed_forward import Activation
from headwise.nn.from_torch import check_class, copy_parts, layer_options
from headwise.nn.inputs import check_alone, check_input, check_mask, check_memory, compute_positions
from headwise.nn.multi_head import MultiHeadAttention
from headwise.nn.real import check_real
from headwise.nn.residual import ResidualLayer, find_child, has_positions, make_norm
from headwise.nn.trace import Trace
from headwise.records import Seen


class EncoderLayer(ResidualLayer):
    """Attention within one sequence, then a feed-forward network. Vaswani et al. 2017, figure 1, left.

        norm_first       x = x + Attention(Norm(x)),   y = x + FFN(Norm(x))      Xiong et al. 2020, figure 1 b
        not norm_first   x = Norm(x + Attention(x)),   y = Norm(x + FFN(x))      as in 2017

    >>> layer = EncoderLayer(512, 8)
    >>> layer = EncoderLayer(512, attention=MultiHeadAttention(512, 8, num_kv_heads=2, positions=positions.Rope(64)))
    >>> y = layer(x, mask=masks.causal())                            # x, y: [B, S, M]

    Args:
        dim: M, the dimensions of the input and of the output.
        num_heads: H, the heads of a new `MultiHeadAttention`. Pass this or `attention`.
        attention: any module with the call arguments of the attention modules of `headwise.nn`.
        ffn_dim: the hidden dimension of the feed-forward network; None = 4 M, or 8/3 M if gated (see `FeedForward`).
        norm: "layer", or "rms" (Zhang & Sennrich 2019).
        norm_first: True = a norm before each branch; False = a norm after each sum.
        activation: the activation of the feed-forward network: "relu", "gelu", "gelu_tanh", "silu"; gated "swiglu",
            "geglu" (Shazeer 2020), "geglu_tanh".
        dropout: of the output of each branch, only in training.
        attention_dropout: of the attention weights; None = `dropout`. A module passed as `attention` has its own.
        ffn_dropout: between the feed-forward network's linear maps; None = `dropout`.
        drop_path: the probability that an example skips a branch, only in training (see `DropPath`).
        norm_eps: the epsilon of the norms.
        bias: whether attention, feed-forward network and LayerNorm have biases.

    Its submodules are `attention`, `attention_norm`, `mlp`, `mlp_norm`, `dropout` and `drop_path`.

    Raises:
        ArgumentError: dimensions that are not divisible, an unknown option, or both num_heads and attention.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int | None = None,
        *,
        attention: nn.Module | None = None,
        ffn_dim: int | None = None,
        norm: Literal["layer", "rms"] = "layer",
        norm_first: bool = True,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        ffn_dropout: float | None = None,
        drop_path: float = 0.0,
        norm_eps: float = 1e-5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, norm_first)
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        check_ready(num_heads, attention_dropout, attention)
        dropped = dropout if attention_dropout is None else attention_dropout
        made = partial(MultiHeadAttention, dropout=dropped, **factory)
        self.attention = choose_attention("attention", attention, dim, num_heads, made)
        self.attention_norm = make_norm(norm, dim, norm_eps, **factory)
        drops: dict[str, Any] = {"dropout": dropout, "ffn_dropout": ffn_dropout, "drop_path": drop_path}
        self._make_mlp(ffn_dim, activation, norm, norm_eps, factory, **drops)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
        *,
        real: Tensor | None = None,
        position_ids: Tensor | None = None,
        record: bool = False,
    ) -> Tensor | tuple[Tensor, Seen]:
        """Compute the output of the layer for a sequence.

        Args:
            query: [B, S, M].
            key, value: must be None. They exist so that all modules of this package have the same arguments.
            mask: which position may attend to which, True = may: of `headwise.masks`, or bool [Q, K], [H, Q, K] or
                [B, H, Q, K]. With a cache, K includes the tokens that it holds; the last query is at the position of
                the last key.
            cache: holds the keys and values of the earlier tokens; those of the new tokens are appended to it.
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding. A cache remembers it.
            position_ids: [S] or [B, S], the positions of the tokens, if not 0, 1, 2 … after the tokens in the cache.
            record: also return the record of the attention.

        Returns:
            [B, S, M]; with `record=True` (output, Seen).

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
            CacheError: a cache of another module or batch, or a full cache.
        """
        check_alone(key, value)
        check_input("query", query, self.dim, linear=getattr(self.attention, "out", None))
        bind(cache, self)
        trace = Trace(record)
        given = {"mask": mask, "real": real, "position_ids": position_ids}
        attend = partial(trace, self.attention, "attention", cache=find_child(cache, "attention"), **given)
        x = self._add(query, self.attention_norm, attend)
        x = self._add(x, self.mlp_norm, self.mlp)
        return trace.result(x)

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoderLayer, *, kernel: str = "auto") -> EncoderLayer:
        """A layer with the options and weights of PyTorch's layer. Inputs are [B, S, M] whatever its batch_first.

        PyTorch's masks are True where attention is *not* allowed: pass `mask=~attn_mask`, `real=~key_padding_mask`.

        Raises:
            ArgumentError: an activation or an option without an equivalent here.
        """
        check_class(module, nn.TransformerEncoderLayer)
        ours = cls(
            module.self_attn.embed_dim,
            attention=MultiHeadAttention.from_torch(module.self_attn, kernel=kernel),
            **layer_options(module, (module.dropout1, module.dropout2)),
        )
        copy_parts(ours, module, {"attention_norm": "norm1", "mlp_norm": "norm2"})
        return ours.train(module.training)


class DecoderLayer(ResidualLayer):
    """Attention within one sequence, attention to another sequence, then a feed-forward network.

    Vaswani et al. 2017, figure 1, right. The other sequence, the memory, is the output of an encoder; it is not
    normalised here. Norms are placed as in `EncoderLayer`.

    >>> layer = DecoderLayer(512, 8)
    >>> y = layer(x, memory, mask=masks.causal(), memory_real=real)    # x, y: [B, Q, M]; memory: [B, K, M]

    Args:
        memory_dim: dimensions of the memory; None = M.
        self_attention, cross_attention: attention modules to use instead of new ones with `num_heads`; either or both.
        dim, num_heads, ffn_dim, norm, norm_first, activation: as for `EncoderLayer`.
        dropout, attention_dropout, ffn_dropout, drop_path, norm_eps, bias: as for `EncoderLayer`.

    Its submodules are `self_attention`, `self_attention_norm`, `cross_attention`, `cross_attention_norm`, `mlp`,
    `mlp_norm`, `dropout` and `drop_path`.

    Raises:
        ArgumentError: dimensions that are not divisible, an unknown option.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int | None = None,
        *,
        memory_dim: int | None = None,
        self_attention: nn.Module | None = None,
        cross_attention: nn.Module | None = None,
        ffn_dim: int | None = None,
        norm: Literal["layer", "rms"] = "layer",
        norm_first: bool = True,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        ffn_dropout: float | None = None,
        drop_path: float = 0.0,
        norm_eps: float = 1e-5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, norm_first)
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        check_ready(num_heads, attention_dropout, self_attention, cross_attention)
        dropped = dropout if attention_dropout is None else attention_dropout
        made = partial(MultiHeadAttention, dropout=dropped, **factory)
        self.self_attention = choose_attention("self_attention", self_attention, dim, num_heads, made)
        self.self_attention_norm = make_norm(norm, dim, norm_eps, **factory)
        check_memory_dim(memory_dim, cross_attention)
        made = partial(made, kdim=memory_dim)
        self.cross_attention = choose_attention("cross_attention", cross_attention, dim, num_heads, made)
        self.cross_attention_norm = make_norm(norm, dim, norm_eps, **factory)
        drops: dict[str, Any] = {"dropout": dropout, "ffn_dropout": ffn_dropout, "drop_path": drop_path}
        self._make_mlp(ffn_dim, activation, norm, norm_eps, factory, **drops)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        cache: Cache | None = None,
        *,
        memory_mask: Mask | Tensor | None = None,
        real: Tensor | None = None,
        memory_real: Tensor | None = None,
        position_ids: Tensor | None = None,
        record: bool = False,
    ) -> Tensor | tuple[Tensor, Seen]:
        """Compute the output of the layer for a sequence and a memory.

        Args:
            query: [B, Q, M].
            key: [B, K, memory_dim], the memory. With a cache it is projected once: pass the same memory at every step.
            value: the values of the memory, [B, K, memory_dim], if they are another tensor; None = `key`.
            mask: within the sequence: which position may attend to which, True = may. With a cache, the keys that it
                holds are included.
            cache: holds the keys and values of the earlier tokens, to which those of the new tokens are appended, and
                the projections of the memory.
            memory_mask: which position may attend to which position of the memory, True = may.
            real: bool or integers [B, Q], True or 1 = a real token of the sequence, False or 0 = padding. A cache
                remembers it.
            memory_real: the same for the tokens of the memory, [B, K]. A cache does not remember it.
            position_ids: [Q] or [B, Q], the positions of the tokens, if not 0, 1, 2 … after the tokens in the cache.
            record: also return the record of the attention.

        Returns:
            [B, Q, M]; with `record=True` (output, Seen).

        Raises:
            ShapeError, DtypeError, MaskError, ArgumentError: an invalid argument; the message names it.
            CacheError: a cache of another module or batch, a full cache, or another memory than before.
        """
        check_input("query", query, self.dim, linear=getattr(self.self_attention, "out", None))
        memory = check_memory(key)
        real = check_real(real, *query.shape[:2])
        memory_real = check_real(memory_real, *memory.shape[:2], name="memory_real")
        bind(cache, self)
        if cache is not None:
            # Inputs that cross-attention refuses are refused before the query's tokens are appended to the
            # self-attention's cache.
            width = getattr(self.cross_attention, "kdim", memory.shape[-1])
            check_input("key", memory, width, batch=query.shape[0])
            heads = getattr(self.cross_attention, "num_heads", None)
            check_mask(memory_mask, query, heads, memory.shape[1], name="memory_mask")
        trace = Trace(record)
        own, other = find_child(cache, "self_attention"), find_child(cache, "cross_attention")
        only_other = has_positions(self.cross_attention) and not has_positions(self.self_attention)
        given = {"mask": mask, "real": real, "position_ids": None if only_other else position_ids}
        attend = partial(trace, self.self_attention, "self_attention", cache=own, **given)
        ids = None
        if has_positions(self.cross_attention):  # cross-attention does not know the position of this step
            ids = compute_positions(query, own, real, position_ids)
        given = {"mask": memory_mask, "real": memory_real, "position_ids": ids}
        read = partial(trace, self.cross_attention, "cross_attention", key=memory, value=value, cache=other, **given)
        x = self._add(query, self.self_attention_norm, attend)
        x = self._add(x, self.cross_attention_norm, read)
        x = self._add(x, self.mlp_norm, self.mlp)
        return trace.result(x)

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoderLayer, *, kernel: str = "auto") -> DecoderLayer:
        """A layer with the options and weights of PyTorch's layer. Inputs are [B, S, M] whatever its batch_first.

        PyTorch's masks are True where attention is *not* allowed: pass `mask=~attn_mask`, `real=~key_padding_mask`.

        Raises:
            ArgumentError: an activation or an option without an equivalent here.
        """
        check_class(module, nn.TransformerDecoderLayer)
        ours = cls(
            module.self_attn.embed_dim,
            self_attention=MultiHeadAttention.from_torch(module.self_attn, kernel=kernel),
            cross_attention=MultiHeadAttention.from_torch(module.multihead_attn, kernel=kernel),
            **layer_options(module, (module.dropout1, module.dropout2, module.dropout3)),
        )
        copy_parts(ours, module, {"self_attention_norm": "norm1", "cross_attention_norm": "norm2", "mlp_norm": "norm3"})
        return ours.train(module.training)


def check_ready(num_heads: int | None, attention_dropout: float | None, *ready: object, what: str = "modules") -> None:
    """Raise ArgumentError if all attention modules were passed in (`ready`) together with options for new ones."""
    if all(module is not None for module in ready):
        for name, option in (("num_heads", num_heads), ("attention_dropout", attention_dropout)):
            if option is not None:
                raise ArgumentError(
                    f"{name}: expected None with given attention {what}, which have their own. "
                    f"Received: {name}={option!r}"
                )


def choose_attention(
    name: str,
    ready: Any,
    dim: int,
    num_heads: int | None,
    make: Callable[[int, int], Any],
    kind: type[Any] = nn.Module,
    what: str = "module",
) -> Any:
    """Return the attention `ready`, or a new one for None. ArgumentError if it does not fit, or needs num_heads."""
    if ready is None:
        if num_heads is None:
            raise ArgumentError(
                f"num_heads: expected the number of heads, or a {what} as {name}. Received: num_heads=None, {name}=None"
            )
        return make(dim, num_heads)
    if not isinstance(ready, kind):
        package = "nn" if kind is nn.Module else "keras"
        raise ArgumentError(
            f"{name}: expected an attention {what} of headwise.{package}. Received: {name}={type(ready).__name__}"
        )
    width = getattr(ready, "dim", dim)
    if width != dim:
        raise ArgumentError(f"{name}: expected a {what} with dim={dim}, as this layer. Received: dim={width}")
    return ready


def check_memory_dim(memory_dim: int | None, cross_attention: object) -> None:
    """Raise ArgumentError for `memory_dim` together with a given attention module, which has its own memory size."""
    if cross_attention is not None and memory_dim is not None:
        raise ArgumentError(
            f"memory_dim: expected None with cross_attention, which has its own. Received: memory_dim={memory_dim}"
        )
