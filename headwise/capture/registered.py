"""Makes an attention call from the arguments of a function of transformers' attention registry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.errors import RecordError
from headwise.masks import Mask


def read(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> AttentionCall:
    """Make an attention call from the arguments of a registry function. RecordError if they cannot be read."""
    if dropout:
        raise RecordError("with dropout there is nothing to compare the record with. Call model.eval()")
    q_len, k_len = query.shape[2], key.shape[2]
    mask: Mask | None = None
    bias = None
    if attention_mask is not None and attention_mask.ndim == 4:
        dense = attention_mask[..., :k_len].expand(*attention_mask.shape[:2], q_len, k_len)
        if dense.dtype == torch.bool:
            mask = masks.recognise(dense)
        else:
            mask, bias = masks.recognise_additive(dense)
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        parts: list[Mask] = [masks.causal()] if causal and q_len > 1 else []
        if sliding_window is not None and sliding_window < k_len:
            parts.append(masks.window(sliding_window - 1, 0 if causal else sliding_window - 1))
        if attention_mask is not None:
            parts.append(masks.padding(attention_mask[:, -k_len:].bool()))
        for part in parts:
            mask = part if mask is None else mask & part
    return make_call(query, key, value, mask=mask, bias=bias, scale=scaling, softcap=softcap, sinks=s_aux)
