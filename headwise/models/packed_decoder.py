"""Runs the steps of a decoder by the native kernels: weights are packed once, all layers and logits are one call."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.models.encoder_decoder import EncoderDecoder
from headwise.models.language_model import CausalLanguageModel
from headwise.models.packed import (
    is_known,
    is_plain,
    list_projections,
    pack_linear,
    pack_norm,
    packed,
    read_scale,
    read_turns,
)
from headwise.models.packed_encoder import pack_stack
from headwise.native.decoder import Decoder
from headwise.native.linear import Dtype, Encoder, Layer, Norm, Weights, norm_of, pack
from headwise.nn import DecoderLayer, EncoderLayer
from headwise.nn import Encoder as Stack
from headwise.nn.feed_forward import GATED
from headwise.nn.norm import LayerNorm, RMSNorm


class Writer(NamedTuple):
    """The packed weights of a model that writes from left to right.

    Args:
        decoder: the decoder, which computes one step at a time.
        memory: the projections of the source to keys and values for all L layers, [L, 2, M] outputs; None if there is
            no cross-attention.
        encoder: the encoder that reads the source; None if there is none, or if the kernels do not support its layers.
    """

    decoder: Decoder
    memory: Weights | None
    encoder: Encoder | None


def pack_writer(model: EncoderDecoder | CausalLanguageModel) -> Writer | None:
    """Pack the weights of a decoder or encoder-decoder; None if its modules must run (see `packed.packed`)."""
    encoder: nn.Module | None = None
    if isinstance(model, EncoderDecoder):
        table, encoder = model.target_embedding.weight, model.encoder
    else:
        table = model.embedding.weight

    def make(dtype: Dtype) -> Writer | None:
        found = _packed(model.decoder, table, dtype)
        if found is None:
            return None
        read = pack_stack(encoder, dtype) if type(encoder) is Stack else None
        return Writer(found, _memory(model.decoder.layers, dtype), read)

    return packed(model, make)


def _memory(layers: Any, dtype: Dtype) -> Weights | None:
    if not isinstance(layers[0], DecoderLayer):
        return None
    weights, biases = [], []
    for layer in layers:
        cross = layer.cross_attention
        # Take the rows for keys and values. In one matrix they come after the rows for the queries.
        parts = list_projections(cross) if cross.is_fused else list_projections(cross)[1:]
        skipped = cross.dim if cross.is_fused else 0
        weights.append(torch.cat([x.weight for x in parts])[skipped:])
        biases.append(torch.cat([_bias(x) for x in parts])[skipped:])
    return pack(torch.cat(weights), torch.cat(biases), dtype)


def _bias(linear: Any) -> Tensor:
    bias: Tensor = linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias
    return bias


def _packed(stack: Any, table: Tensor, dtype: Dtype) -> Decoder | None:
    layers = list(stack.layers)
    if dtype != "float32" or not all(_is_known(layer) for layer in layers):  # keys and values are stored as float32
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
        read_scale(own),
        read_scale(cross),
        _norm(stack.norm),
        pack(table, None, dtype),
        rms=kinds[0] is RMSNorm,
        frequencies=getattr(own.positions, "inverse_frequencies", None),
    )


def _own(layer: Any) -> Any:
    return layer.self_attention if isinstance(layer, DecoderLayer) else layer.attention


def _norms(layer: Any) -> tuple[nn.Module, ...]:
    if isinstance(layer, DecoderLayer):
        return layer.self_attention_norm, layer.cross_attention_norm, layer.mlp_norm
    return layer.attention_norm, layer.mlp_norm


def _options(layer: Any) -> tuple[object, ...]:
    """Return the options of a layer that must be equal in all layers."""
    own, mlp = _own(layer), layer.mlp
    cross = read_scale(layer.cross_attention) if isinstance(layer, DecoderLayer) else None
    return type(layer), own.num_heads, read_scale(own), cross, mlp.activation, mlp.hidden_dim, read_turns(own.positions)


def _is_known(layer: Any) -> bool:
    """Return whether the kernels support all submodules of a layer."""
    if type(layer) not in (EncoderLayer, DecoderLayer) or not layer.norm_first or not is_known(layer, _own(layer)):
        return False
    if not isinstance(layer, DecoderLayer):
        return True
    cross = layer.cross_attention
    return is_plain(cross, layer.dim) and cross.positions is None and cross.num_heads == _own(layer).num_heads


def _layer(layer: Any, dtype: Dtype) -> Layer:
    own, mlp = _own(layer), layer.mlp
    cross = layer.cross_attention if isinstance(layer, DecoderLayer) else None
    attention_norm, *cross_norm, mlp_norm = (_norm(x) for x in _norms(layer))
    return Layer(
        pack_linear(own.qkv, dtype),
        pack_linear(own.out, dtype),
        pack_linear(mlp.up, dtype),
        pack_linear(mlp.down, dtype),
        attention_norm,
        mlp_norm,
        cross_q=None if cross is None else _queries(cross, dtype),
        cross_out=None if cross is None else pack_linear(cross.out, dtype),
        gate=None if mlp.gate is None else pack_linear(mlp.gate, dtype),
        cross_norm=cross_norm[0] if cross_norm else None,
    )


def _queries(cross: Any, dtype: Dtype) -> Any:
    """Pack the projection of the queries; it may be the first rows of one matrix with keys and values."""
    first = list_projections(cross)[0]
    return pack(first.weight[: cross.dim], _bias(first)[: cross.dim], dtype)


def _norm(norm: Any) -> Norm:
    if isinstance(norm, LayerNorm):
        return pack_norm(norm)
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return norm_of(norm.weight, None, norm.normalized_shape[0], eps)
