"""The attention function that transformers' models call: `headwise.attention`, with their options and layout."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from typing import Any

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.errors import ArgumentError
from headwise.flash_attention import number_sequences
from headwise.functional import attention
from headwise.masks import Mask
from headwise.masks.additive import FORBIDS
from headwise.tracing import is_plain
from headwise.transformers.mask_tensor import MaskTensor


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
    indices: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of a transformers model: (output [B, Q, H, E], weights [B, H, Q, K] or None).

    Args:
        module: the layer that calls. Its `is_causal` is not read: `make_mask` always makes a causal mask.
        query: [B, H, Q, D].
        key, value: [B, G, K, D] and [B, G, K, E]; H is a multiple of G.
        attention_mask: what `make_mask` made, or a mask [B|1, H|1, Q|1, K] of the caller: bool, True = may attend, or
            float, added to the scores.
        dropout: probability with which a weight is dropped; 0.0 unless the model trains.
        scaling: the factor of the scores; None = 1/sqrt(D).
        is_causal: whether query i sees only the keys up to i; used only without a mask, and for more than one query.
        position_bias: [B|1, H, Q, K], added to the scores.
        softcap: scores become softcap · tanh(scores / softcap).
        s_aux: [H], a learned sink for each head.
        output_attentions: whether to return the weights, before dropout and without gradients.
        cu_seq_lens_q: where packed sequences begin in the one row, and its length; used only without a mask.
        indices: [B, Q, n], the keys that an indexer chose for each query (DeepSeek-V3.2); it sees no other.
        more: inputs of the model that it hands down, and arguments of other attention functions.

    Raises ArgumentError for any other argument: it could change the result.
    """
    for name, given in more.items():
        if given is not None and name not in _OF_OTHERS and not _is_handed_down(type(module), name):
            raise ArgumentError(
                f"attn_implementation='headwise' does not know an argument, which may change the result. "
                f"Received: {name}, from {type(module).__name__}. Use attn_implementation='eager'"
            )
    mask, bias, key, value = _read_mask(attention_mask, query, key, value)
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]
        bias = position_bias if bias is None else bias + position_bias
    limits = []
    if attention_mask is None and query.shape[2] > 1:
        if is_causal:
            limits.append(masks.causal(offset=0))
        if cu_seq_lens_q is not None and query.shape[2] == key.shape[2]:
            limits.append(masks.documents(number_sequences(cu_seq_lens_q, key.shape[2])))
    if indices is not None:
        limits.append(masks.from_tensor(_list_chosen(indices, key.shape[2])))
    if limits and mask is not None:
        limits.append(mask if isinstance(mask, Mask) else masks.from_tensor(mask))
    mask = functools.reduce(operator.and_, limits) if limits else mask
    options: Any = {"mask": mask, "bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux}
    options["dropout"] = dropout
    if output_attentions:
        out, record = attention(query, key, value, record=True, **options)
        return out.transpose(1, 2).contiguous(), record.weights()
    return attention(query, key, value, **options).transpose(1, 2).contiguous(), None


# Arguments of other attention functions, and of caches: the mask, the keys and the values already hold what they say.
_OF_OTHERS = frozenset(
    {"sliding_window", "cu_seq_lens_k", "max_length_q", "max_length_k", "deterministic", "target_dtype", "use_cache"}
    | {"cache_position", "past_key_values"}
)


_known: dict[tuple[type[nn.Module], str], bool] = {}  # not functools.cache, which torch.compile warns of


@torch.compiler.assume_constant_result
def _is_handed_down(layer: type[nn.Module], name: str) -> bool:
    """Whether `_is_input`, asked once for each layer class and name: it is called in every layer of every forward."""
    if (layer, name) not in _known:
        _known[layer, name] = _is_input(layer, name)
    return _known[layer, name]


def _is_input(layer: type[nn.Module], name: str) -> bool:
    """Whether an argument is an input of a model, which went down to the layer with all others and changes nothing.

    That is so if the model's eager attention has no such argument, and transformers' models have such an input.
    """
    from transformers import utils

    file: dict[str, Any] = vars(sys.modules[layer.__module__])
    eager = file.get("eager_attention_forward")
    if eager is not None and name in inspect.signature(eager).parameters:
        return False
    inputs = set(utils.TransformersKwargs.__annotations__)
    for kind in file.values():
        if isinstance(kind, type) and issubclass(kind, nn.Module):
            inputs.update(inspect.signature(kind.forward).parameters)
    return name in inputs


def _read_mask(
    given: Tensor | None, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Mask | Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return the mask, the bias, and keys and values without those that a static cache has not filled yet."""
    if isinstance(given, MaskTensor) and given.shape[2:] == (query.shape[2], key.shape[2]):
        return given.mask, None, key, value
    given = None if given is None else given[..., : key.shape[2]]  # one mask may serve layers with fewer keys
    if given is None or not given.dtype.is_floating_point:
        return given, None, key, value
    if query.shape[2] == 1 and given.shape[3] == key.shape[2] and given.is_cpu and is_plain():
        seen = (given.amax((0, 1, 2)) > FORBIDS).nonzero()
        used = int(seen[-1]) + 1 if len(seen) else key.shape[2]
        given, key, value = given[..., :used], key[:, :, :used], value[:, :, :used]
    return None, given, key, value


def _list_chosen(indices: Tensor, k_len: int) -> Tensor:
    """Return which keys are chosen, bool [B, 1, Q, K], of the numbers of the chosen keys [B, Q, n]."""
    chosen = torch.zeros(*indices.shape[:2], k_len, dtype=torch.bool, device=indices.device)
    return chosen.scatter_(-1, indices.long(), True)[:, None]
