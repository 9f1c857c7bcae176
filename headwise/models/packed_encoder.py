"""The layers of a Bert by the native kernels: weights packed once, everything between products done in the cache.

For inference on the CPU, where nothing looks into the model: hooks, `watch` and `edit` see the modules themselves.
Dimension letters: T tokens of all texts, M model.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.functional import is_followed, listeners_of_calls
from headwise.native.library import instruction_set
from headwise.native.linear import ACTIVATIONS, Dtype, Embeddings, Encoder, Layer, Norm, Weights, norm_of, pack
from headwise.nn import EncoderLayer, FeedForward, MultiHeadAttention
from headwise.nn.norm import LayerNorm

NAMES: dict[torch.dtype, Dtype] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class _Packed(NamedTuple):
    parameters: list[Tensor]  # held, so that no other tensor takes their place in memory
    versions: list[tuple[int, int]]
    encoder: Encoder | None  # None: there is no such encoder for these layers


_remembered: weakref.WeakKeyDictionary[nn.Module, dict[str, _Packed]] = weakref.WeakKeyDictionary()


def encoder_of(bert: nn.Module, tables: type[nn.Module], dtype: Dtype | None = None) -> Encoder | None:
    """The encoder of a Bert; None where the modules themselves must run, or are as fast.

    It is packed at the first call, and again after parameters were changed in place or replaced. Writes that change no
    version counter are not seen: through `.data`, through NumPy, and by fused optimizers, after which `forget` helps.

    Args:
        bert: a module with `embeddings` and `layers`.
        tables: the class of embeddings that are sums of BERT's three tables, and their norm; others run as they are.
        dtype: of the products; None = that of the parameters.
    """
    if torch.is_grad_enabled() or bert.training or not _is_alone() or instruction_set() in (None, "portable"):
        return None
    parameters: list[Tensor] = []
    if not _collect(bert, parameters):
        return None
    kind = parameters[0].dtype
    name = NAMES.get(kind) if dtype is None else dtype
    if name is None:
        return None
    versions = [(x.data_ptr(), 0 if x.is_inference() else x._version) for x in parameters]
    kept = _remembered.setdefault(bert, {})
    found = kept.get(name)
    if found is None or found.versions != versions:
        held = [x.detach() for x in parameters]
        found = kept[name] = _Packed(held, versions, _packed(bert, tables, name) if _are_plain(parameters) else None)
    return found.encoder


def forget(bert: nn.Module) -> None:
    """Pack the weights of a model again at the next call."""
    _remembered.pop(bert, None)


def hidden_states(
    bert: Any,
    encoder: Encoder,
    ids_T: Tensor,
    types_T: Tensor | None,
    lengths: Tensor,
) -> Tensor:
    """The hidden states [T, M] of texts behind one another, in the dtype of the parameters.

    Args:
        bert: the module that `encoder` is of.
        encoder: of `encoder_of`.
        ids_T: int64 [T], in the vocabulary.
        types_T: int64 [T]; None = all 0.
        lengths: [texts], int64, of sum T.
    """
    ends = lengths.cumsum(0)
    places_T = torch.arange(len(ids_T)) - (ends - lengths).repeat_interleave(lengths)
    types_T = torch.zeros_like(ids_T) if types_T is None else types_T
    first = torch.cat([ends.new_zeros(1), ends])
    listeners = listeners_of_calls()
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
    """The attention of each layer: of all texts, each a document, as the modules call it."""
    mask = None
    if len(lengths) > 1:
        mask = masks.documents(torch.arange(len(lengths)).repeat_interleave(lengths))
    for of_layer in qkv.permute(0, 2, 3, 1, 4):
        q, k, v = of_layer[:, None]  # [1, H, T, D]
        yield make_call(q, k, v, mask=mask, scale=scale)


def _is_alone() -> bool:
    """Whether nothing follows torch's operators or headwise's attention, or changes what they do."""
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or is_followed()
        or torch.is_autocast_enabled("cpu")
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or nn.modules.module._global_forward_hooks
        or nn.modules.module._global_forward_pre_hooks
    )


def _collect(module: nn.Module, parameters: list[Tensor]) -> bool:
    """Collect the parameters of a module. False if a part has hooks, is in training or has a forward of its own."""
    state = module.__dict__
    if state["_forward_hooks"] or state["_forward_pre_hooks"] or state["training"] or "forward" in state:
        return False
    parameters += [x for x in state["_parameters"].values() if x is not None]
    return all(_collect(part, parameters) for part in state["_modules"].values() if part is not None)


def _are_plain(parameters: list[Tensor]) -> bool:
    first = parameters[0]
    return all(type(x) is nn.Parameter and x.device.type == "cpu" and x.dtype == first.dtype for x in parameters)


def _packed(bert: nn.Module, tables: type[nn.Module], dtype: Dtype) -> Encoder | None:
    layers = list(bert.layers)  # type: ignore[arg-type]
    if not layers or not all(_is_known(layer) for layer in layers):
        return None
    first = layers[0]
    same = {(x.attention.num_heads, x.attention.scale, x.mlp.activation, x.mlp.hidden_dim) for x in layers}
    if len(same) > 1:
        return None
    scale = first.attention.head_dim**-0.5 if first.attention.scale is None else first.attention.scale
    made = [_layer(layer, dtype) for layer in layers]
    embeddings = _embeddings(bert.embeddings) if type(bert.embeddings) is tables else None
    return Encoder(made, first.attention.num_heads, first.mlp.activation, scale, embeddings)


def _is_known(layer: Any) -> bool:
    """Whether a layer is one of BERT's, and nothing else."""
    if type(layer) is not EncoderLayer or layer.norm_first or type(layer.mlp) is not FeedForward:
        return False
    attention, mlp = layer.attention, layer.mlp
    return (
        type(attention) is MultiHeadAttention
        and attention.projection == "per_head"
        and attention.is_fused
        and attention.projection_sizes == (layer.dim,) * 3
        and attention.kernel == "auto"
        and not any((attention.positions, attention.gate, attention.q_norm, attention.k_norm, attention.softcap))
        and attention.sinks is None
        and (attention.scale is None or attention.scale > 0)
        and mlp.activation in ACTIVATIONS
        and mlp.gate is None
        and all(type(x) is nn.Linear for x in (attention.qkv, attention.out, mlp.up, mlp.down))
        and all(type(x) is LayerNorm for x in (layer.attention_norm, layer.mlp_norm))
    )


def _layer(layer: EncoderLayer, dtype: Dtype) -> Layer:
    attention, mlp = layer.attention, layer.mlp
    qkv, out, up, down = (_weights(x, dtype) for x in (attention.qkv, attention.out, mlp.up, mlp.down))
    return Layer(qkv, out, up, down, _norm(layer.attention_norm), _norm(layer.mlp_norm))


def _weights(linear: Any, dtype: Dtype) -> Weights:
    return pack(linear.weight, linear.bias, dtype)


def _norm(norm: Any) -> Norm:
    return norm_of(norm.weight, norm.bias, norm.normalized_shape[0], norm.eps)


def _embeddings(embeddings: Any) -> Embeddings | None:
    """The tables, if they are those of BERT."""
    if type(embeddings.norm) is not LayerNorm:
        return None
    if embeddings.first_position or embeddings.project is not None:
        return None
    tables: list[Any] = [embeddings.word, embeddings.token_type, embeddings.position]
    if not all(type(x) is nn.Embedding and x.max_norm is None for x in tables):
        return None
    word, type_, position = (x.weight.detach().float().contiguous() for x in tables)
    return Embeddings(word, type_, position, _norm(embeddings.norm))
