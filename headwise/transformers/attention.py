"""The attention function that transformers' models call: `headwise.attention`, with their options and layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.errors import ArgumentError
from headwise.functional import attention
from headwise.masks import Mask
from headwise.tracing import is_plain
from headwise.transformers.mask_tensor import MaskTensor

# What models pass to every attention function and what does not change the result: the mask or the cache already holds
# it, or it is for another part of the model.
_OF_OTHERS = frozenset(
    {
        "sliding_window", "position_ids", "position_embeddings", "use_cache", "cache_position", "past_key_values",
        "output_hidden_states", "output_router_logits", "return_dict", "num_items_in_batch", "logits_to_keep",
        "cu_seq_lens_k", "max_length_q", "max_length_k", "deterministic", "target_dtype", "layer_idx",
    }
)  # fmt: skip


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    output_attentions: bool | None = False,
    cu_seq_lens_q: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of a transformers model: (output [B, Q, H, E], weights [B, H, Q, K] or None).

    Args:
        module: the layer that calls; `is_causal` is read from it where neither a mask nor the argument says it.
        query: [B, H, Q, D].
        key, value: [B, G, K, D] and [B, G, K, E]; H is a multiple of G.
        attention_mask: what `make_mask` made, or a mask [B|1, H|1, Q|1, K] of the caller: bool, True = may attend, or
            float, added to the scores.
        dropout: probability with which a weight is dropped; 0.0 unless the model trains.
        scaling: the factor of the scores; None = 1/sqrt(D).
        is_causal: used only without a mask, and for more than one query: query i sees the keys up to i.
        position_bias: [B|1, H, Q, K], added to the scores.
        softcap: scores become softcap · tanh(scores / softcap).
        s_aux: [H], a learned sink for each head.
        output_attentions: whether to return the weights, before dropout and without gradients.
        cu_seq_lens_q: where packed sequences begin in the one row, and its length; used only without a mask.
        more: arguments of other attention functions, which change nothing here.

    Raises ArgumentError for an argument that is not known: it could change the result.
    """
    if unknown := sorted(set(more) - _OF_OTHERS):
        raise ArgumentError(
            f"attn_implementation='headwise': it is not known whether these arguments change the result. "
            f"Received: {', '.join(unknown)}, from {type(module).__name__}. Use attn_implementation='eager'"
        )
    mask, bias, key, value = _read_mask(attention_mask, query, key, value)
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    if attention_mask is None and query.shape[2] > 1:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal:
            mask = masks.causal(offset=0)
        if cu_seq_lens_q is not None and query.shape[2] == key.shape[2]:
            packed = masks.documents(_number_sequences(cu_seq_lens_q, key.shape[2]))
            mask = packed if mask is None else mask & packed
    more = {"mask": mask, "bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux, "dropout": dropout}
    if output_attentions:
        out, record = attention(query, key, value, record=True, **more)
        return out.transpose(1, 2).contiguous(), record.weights()
    return attention(query, key, value, **more).transpose(1, 2).contiguous(), None


def _read_mask(
    given: Tensor | None, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Mask | Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return the mask, the bias, and keys and values without those that a static cache has not filled yet."""
    if given is None:
        return None, None, key, value
    if given.dtype.is_floating_point:
        return None, given, key, value
    if isinstance(given, MaskTensor) and given.shape[2:] == (query.shape[2], key.shape[2]):
        return given.mask, None, key, value
    return given, None, key, value


def _number_sequences(starts: Tensor, length: int) -> Tensor:
    """Number the sequences that are packed in one row: 0, 0, 0, 1, 1, … [length]."""
    return torch.bucketize(torch.arange(length, device=starts.device), starts[1:], right=True)
