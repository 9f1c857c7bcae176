"""The steps of a decoder by the native kernels: weights packed once, all layers and the logits in one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.packed import layer_norm_of, packed, weights_of
from headwise.native.decoder import Decoder, Layer
from headwise.native.linear import ACTIVATIONS, Dtype, Norm, norm_of, pack
from headwise.nn import DecoderLayer, EncoderLayer, FeedForward, MultiHeadAttention
from headwise.nn.norm import LayerNorm, RMSNorm
from headwise.nn.positions import Rope

GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}


def decoder_of(model: nn.Module, stack: nn.Module, table: Tensor) -> Decoder | None:
    """The decoder of a model that writes from left to right; None where the modules themselves must run.

    Args:
        model: the whole, with which it is kept: see `packed.packed`.
        stack: its decoder, with `layers` and a `norm` behind them.
        table: [V, M], of the logits.
    """
    return packed(model, lambda dtype: _packed(stack, table, dtype))


def _packed(stack: Any, table: Tensor, dtype: Dtype) -> Decoder | None:
    layers = list(stack.layers)
    if dtype != "float32" or not all(_is_known(layer) for layer in layers):  # what is read is kept as float32
        return None
    kinds = [type(stack.norm), *(type(norm) for layer in layers for norm in _norms(layer))]
    options = {_options(layer) for layer in layers}
    if len(options) > 1 or any(kind is not kinds[0] for kind in kinds) or kinds[0] not in (LayerNorm, RMSNorm):
        return None
    first, own = layers[0], _own(layers[0])
    cross = first.cross_attention if isinstance(first, DecoderLayer) else own
    return Decoder(
        [_layer(layer, dtype) for layer in layers],
        own.num_heads,
        GATED.get(first.mlp.activation, first.mlp.activation),
        _scale(own),
        _scale(cross),
        _norm(stack.norm),
        pack(table, None, dtype),
        rms=kinds[0] is RMSNorm,
        frequencies=None if own.positions is None else own.positions.inverse_frequencies,
    )


def _own(layer: Any) -> Any:
    return layer.self_attention if isinstance(layer, DecoderLayer) else layer.attention


def _norms(layer: Any) -> tuple[nn.Module, ...]:
    if isinstance(layer, DecoderLayer):
        return layer.self_attention_norm, layer.cross_attention_norm, layer.mlp_norm
    return layer.attention_norm, layer.mlp_norm


def _options(layer: Any) -> tuple[object, ...]:
    """What all layers must have alike."""
    own, mlp = _own(layer), layer.mlp
    turns = None if own.positions is None else (own.positions.base, own.positions.rotary_dim)
    cross = _scale(layer.cross_attention) if isinstance(layer, DecoderLayer) else None
    return (type(layer), own.num_heads, _scale(own), cross, mlp.activation, mlp.hidden_dim, turns)


def _scale(attention: Any) -> float:
    return attention.head_dim**-0.5 if attention.scale is None else attention.scale


def _is_known(layer: Any) -> bool:
    """Whether a layer is one whose parts the kernels have, and nothing else."""
    if type(layer) not in (EncoderLayer, DecoderLayer) or not layer.norm_first or type(layer.mlp) is not FeedForward:
        return False
    own, mlp = _own(layer), layer.mlp
    if not _is_plain(own, layer.dim) or not own.is_fused or own.projection_sizes != (layer.dim,) * 3:
        return False
    if (rope := own.positions) is not None and (type(rope) is not Rope or rope.interleaved or rope.scaling is not None):
        return False
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention
        if not _is_plain(cross, layer.dim) or cross.positions is not None or cross.num_heads != own.num_heads:
            return False
    linear = [mlp.up, mlp.down] if mlp.gate is None else [mlp.gate, mlp.up, mlp.down]
    is_known = mlp.activation in GATED if mlp.gate is not None else mlp.activation in ACTIVATIONS
    return is_known and all(type(x) is nn.Linear for x in linear)


def _is_plain(attention: Any, dim: int) -> bool:
    return (
        type(attention) is MultiHeadAttention
        and attention.projection == "per_head"
        and attention.projection_sizes == (dim,) * 3
        and attention.kernel == "auto"
        and not any((attention.gate, attention.q_norm, attention.k_norm, attention.softcap))
        and attention.sinks is None
        and all(type(x) is nn.Linear for x in attention.children() if isinstance(x, nn.Linear))
    )


def _layer(layer: Any, dtype: Dtype) -> Layer:
    own, mlp = _own(layer), layer.mlp
    cross = layer.cross_attention if isinstance(layer, DecoderLayer) else None
    attention_norm, *cross_norm, mlp_norm = (_norm(x) for x in _norms(layer))
    return Layer(
        weights_of(own.qkv, dtype),
        weights_of(own.out, dtype),
        None if cross is None else _queries(cross, dtype),
        None if cross is None else weights_of(cross.out, dtype),
        None if mlp.gate is None else weights_of(mlp.gate, dtype),
        weights_of(mlp.up, dtype),
        weights_of(mlp.down, dtype),
        attention_norm,
        cross_norm[0] if cross_norm else None,
        mlp_norm,
    )


def _queries(cross: Any, dtype: Dtype) -> Any:
    """The projection of the queries, which may stand before those of keys and values."""
    if not cross.is_fused:
        return weights_of(cross.q, dtype)
    bias = cross.qkv.bias
    return pack(cross.qkv.weight[: cross.dim], None if bias is None else bias[: cross.dim], dtype)


def _norm(norm: Any) -> Norm:
    if isinstance(norm, LayerNorm):
        return layer_norm_of(norm)
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return norm_of(norm.weight, None, norm.normalized_shape[0], eps)
