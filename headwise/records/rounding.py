"""A model in half precision rounds its weights, a record does not. This module can round likewise, or bound the error.

A record keeps the model's q and k, and computes scores and softmax from them in float32. A model that computes
attention step by step in bfloat16 or float16 rounds the scores after each operation, and the weights: its weights are
less exact than the record's, by up to `rounding_bound`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.call import Scores, suspend_autocast
from headwise.masks.additive import FORBIDS
from headwise.options import EVERY, Index
from headwise.softmax import EMPTY, Normaliser, attention_weights, finite

HALF = (torch.bfloat16, torch.float16)


def rounded_weights(call: Scores, rows: Index, heads: Index) -> Tensor:
    """Compute weights of whole rows, [B, heads, rows, K], with every result rounded to the dtype of q.

    The operations, and their order, are those of eager attention in transformers: q kᵀ, times the scale, the softcap,
    plus the bias, the softmax in float32. With a learned sink, each row's highest score is subtracted before the
    softmax.
    """
    part = call.part(heads=heads, rows=rows)
    with suspend_autocast(part.q.device):
        s = part.from_products(part.q @ part.k.repeat_interleave(part.heads_per_key_head, 1).mT)
    s = s.masked_fill(call.scores(rows, EVERY, heads) == EMPTY, EMPTY)
    if part.sinks is not None:
        s = torch.cat([s, part.sinks[:, None, None].to(s.dtype).expand(*s.shape[:3], 1)], -1)
        s = s - finite(s.amax(-1, keepdim=True))
    return attention_weights(s.to(call.dtype))[..., : call.shape[3]].to(s.dtype)


def rounding_bound(call: Scores, rows: Index, heads: Index) -> Tensor:
    """Bound the difference between weights computed in the dtype of q and the record's weights: [B, heads, rows, K].

    The bound is A · (exp(2δ + ε) - 1) + the smallest normal number, at most 1, with ε = `torch.finfo(dtype).eps` and
    δ = 4 ε · (the row's largest |score|) + 2⁻²³ D · scale · |q| · (the largest |k|).

    A score takes at most eight roundings of ε / 2 (the product, the scale, three of a softcap, the bias, a maximum that
    is subtracted, the exponential); the products are summed in float32. The row's sum has the same error again. Scores
    of forbidden keys are ignored.
    """
    s = call.scores(rows, EVERY, heads)
    part, eps = call.part(heads=heads, rows=rows), torch.finfo(call.q.dtype).eps
    raw = Scores(part.q, part.k, scale=part.scale).unmasked()  # before softcap and bias
    largest = torch.maximum(s.abs(), raw.abs()).masked_fill(s <= FORBIDS, 0.0).amax(-1, keepdim=True)
    if part.sinks is not None:
        largest = largest.maximum(part.sinks.abs()[:, None, None].to(largest.dtype))
    norms = [x.to(call.dtype).norm(dim=-1) for x in (part.q, part.k)]
    longest = norms[1].amax(-1).repeat_interleave(part.heads_per_key_head, 1)[..., None]
    summed = (2.0**-23 * call.q.shape[3] * abs(part.scale) * norms[0] * longest)[..., None]
    exponent = 2 * (4 * eps * largest + summed) + eps
    normaliser = Normaliser.of(s).with_sinks(part.sinks)
    weights = normaliser.weights(s)
    # A weight that is 0 in float32 may become positive.
    off = torch.where(weights > 0, weights * exponent.expm1(), normaliser.weights(s + exponent))
    return (off + torch.finfo(call.q.dtype).tiny).clamp(max=1.0)
