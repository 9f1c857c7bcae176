"""Runs the layers of a `Bert` by the native kernels: weights are packed once, small work stays in the CPU's cache.

Only for inference on the CPU, and only if nothing looks into the model: hooks, `watch` and `edit` need its modules.
Dimension letters: T tokens of all texts, M model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.functional import list_call_listeners
from headwise.models.packed import is_known, pack_linear, pack_norm, packed, read_scale, read_turns
from headwise.native.linear import Dtype, Embeddings, Encoder, Layer, Norm
from headwise.nn import EncoderLayer
from headwise.nn.norm import LayerNorm


def pack_encoder(bert: nn.Module, tables: type[nn.Module], dtype: Dtype | None = None) -> Encoder | None:
    """Pack the layers of a `Bert`; None if the modules themselves must run, or are as fast (see `packed.packed`).

    Args:
        bert: a module with `embeddings` and `layers`.
        tables: the class of embeddings that the kernels can compute: the sum of BERT's three tables, and a norm.
            Embeddings of another class run as modules.
        dtype: the dtype of the products; None = the dtype of the parameters.
    """
    return packed(bert, lambda name: pack_for(bert, tables, name), dtype)


def pack_for(bert: Any, tables: type[nn.Module], dtype: Dtype, strip: int | None = None) -> Encoder | None:
    """Pack the layers of a `Bert`, even if its modules must run here; None if the kernels do not support them.

    Args:
        bert, tables, dtype: as for `pack_encoder`.
        strip: how many outputs are next to one another in the weights; None = those of the instruction set in use.
    """
    embeddings = _embeddings(bert.embeddings) if type(bert.embeddings) is tables else None
    return _packed(list(bert.layers), dtype, embeddings, strip=strip)


def pack_stack(stack: Any, dtype: Dtype) -> Encoder | None:
    """Pack a stack of `headwise.nn` with norms before the branches; None if the kernels do not support it."""
    if dtype != "float32" or type(stack.norm) is not LayerNorm:
        return None
    return _packed(list(stack.layers), dtype, last=pack_norm(stack.norm))


def hidden_states(
    bert: Any,
    encoder: Encoder,
    ids_T: Tensor,
    types_T: Tensor | None,
    lengths: Tensor,
) -> Tensor:
    """Compute the last hidden states [T, M] of concatenated texts, in the dtype of the parameters.

    Args:
        bert: the module to which `encoder` belongs.
        encoder: the result of `pack_encoder`.
        ids_T: int64 [T], the token ids of all texts, one text after another.
        types_T: int64 [T], the token types; None = all 0.
        lengths: int64 [texts], the number of tokens of each text; their sum is T.
    """
    ends = lengths.cumsum(0)
    places_T = torch.arange(len(ids_T)) - (ends - lengths).repeat_interleave(lengths)
    types_T = torch.zeros_like(ids_T) if types_T is None else types_T
    first = torch.cat([ends.new_zeros(1), ends])
    listeners = list_call_listeners()
    qkv = encoder.room_for_qkv(len(ids_T)) if listeners else None
    if encoder.embeddings is not None:
        found = encoder.embed(ids_T, types_T, places_T, first, qkv)
    else:
        x_TM = bert.embeddings(ids_T[None], types_T[None], places_T)[0].float().contiguous()
        found = encoder(x_TM, first, qkv)
    if qkv is not None:
        for call in _calls(qkv, encoder.scale, lengths):
            for listener in listeners:
                listener(call, None)
    return found.to(next(bert.parameters()).dtype)


def _calls(qkv: Tensor, scale: float, lengths: Tensor) -> Iterator[AttentionCall]:
    """Yield each layer's `AttentionCall`, equal to that of the modules; each text is a document of one sequence."""
    mask = None
    if len(lengths) > 1:
        mask = masks.documents(torch.arange(len(lengths)).repeat_interleave(lengths))
    for of_layer in qkv.permute(0, 2, 3, 1, 4):
        q, k, v = of_layer[:, None]  # [1, H, T, D]
        yield make_call(q, k, v, mask=mask, scale=scale)


def _packed(
    layers: list[Any],
    dtype: Dtype,
    embeddings: Embeddings | None = None,
    last: Norm | None = None,
    strip: int | None = None,
) -> Encoder | None:
    """Pack the layers; None if unsupported. `last`: the norm after the last layer, if norms precede the branches."""
    if not all(_is_known(layer, norm_first=last is not None) for layer in layers):
        return None
    if len({_options(layer) for layer in layers}) != 1:
        return None
    own, made = layers[0].attention, [_layer(layer, dtype, strip) for layer in layers]
    given = own.num_heads, layers[0].mlp.activation, read_scale(own), embeddings
    return Encoder(made, *given, last=last, frequencies=getattr(own.positions, "inverse_frequencies", None))


def _options(layer: Any) -> tuple[object, ...]:
    """Return the options of a layer that must be equal in all layers."""
    own, mlp = layer.attention, layer.mlp
    return own.num_heads, own.scale, mlp.activation, mlp.hidden_dim, read_turns(own.positions)


def _is_known(layer: Any, *, norm_first: bool) -> bool:
    """Return whether a layer is like BERT's; with norms before the branches, it may also have rotary positions."""
    return (
        type(layer) is EncoderLayer
        and layer.norm_first is norm_first
        and is_known(layer, layer.attention)
        and (norm_first or layer.attention.positions is None)
        and read_scale(layer.attention) > 0
        and layer.mlp.gate is None
        and all(type(x) is LayerNorm for x in (layer.attention_norm, layer.mlp_norm))
    )


def _layer(layer: EncoderLayer, dtype: Dtype, strip: int | None) -> Layer:
    attention, mlp = layer.attention, layer.mlp
    qkv, out, up, down = (pack_linear(x, dtype, strip) for x in (attention.qkv, attention.out, mlp.up, mlp.down))
    return Layer(qkv, out, up, down, pack_norm(layer.attention_norm), pack_norm(layer.mlp_norm))


def _embeddings(embeddings: Any) -> Embeddings | None:
    """Pack the embeddings; None if they are not the sum of BERT's three tables."""
    if type(embeddings.norm) is not LayerNorm:
        return None
    if embeddings.first_position or embeddings.project is not None:
        return None
    tables: list[Any] = [embeddings.word, embeddings.token_type, embeddings.position]
    if not all(type(x) is nn.Embedding and x.max_norm is None for x in tables):
        return None
    word, type_, position = (x.weight.detach().float().contiguous() for x in tables)
    return Embeddings(word, type_, position, pack_norm(embeddings.norm))
