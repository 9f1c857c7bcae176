"""Attention from its definition, in float64, one query at a time: what every kernel is compared with.

    s = scale · q kᵀ;   s = softcap · tanh(s / softcap);   s += bias;   A = exp(s) / (Σ exp(s) + exp(sink))

The sums run over the keys that the mask allows. What other keys and their bias hold never enters, not even NaN; in an
allowed cell NaN and inf spread as in any arithmetic. A query without keys, or with all scores -inf, gets 0. A sink of
-inf is no sink. Score plus bias is rounded to the dtype of scores, float32 or, for float64 inputs, float64: a bias of
finfo.min makes all scores of a row equal in it, so the weights are equal too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headwise.masks import Mask


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """[B, H, Q, E] in float64; arguments as in `headwise.attention`, `dtype` that of the call if it is not q's."""
    (batch, heads, q_len, d), k_len = q.shape, k.shape[2]
    sizes, dtype = (batch, heads, q_len, k_len), torch.promote_types(dtype or q.dtype, torch.float32)
    allowed = cells(mask, sizes)
    q, k, v = q.double(), *(x.double().repeat_interleave(heads // k.shape[1], dim=1) for x in (k, v))
    sink = (torch.full((heads,), -math.inf) if sinks is None else sinks).double()[None, :, None].expand(batch, -1, 1)
    rows = [q.new_zeros((batch, heads, 0, v.shape[-1]))]
    for i in range(q_len):
        seen = allowed[:, :, i, :, None]
        s = (d**-0.5 if scale is None else scale) * (q[:, :, i, None] * torch.where(seen, k, 0.0)).sum(-1)
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        s = s if bias is None else (s + bias.to(dtype).expand(sizes)[:, :, i]).to(dtype).double()
        s = torch.cat([s.masked_fill(~seen[..., 0], -math.inf), sink], dim=-1)
        highest = s.detach().amax(-1, keepdim=True)
        e = torch.exp(s - highest.masked_fill(highest == -math.inf, 0.0))[..., None]
        total = e.sum(-2, keepdim=True)
        weights = torch.where(seen, e[:, :, :-1] / total.masked_fill(total == 0.0, 1.0), 0.0)
        rows.append((weights * torch.where(seen, v, 0.0)).sum(-2, keepdim=True))
    return torch.cat(rows, dim=2)


def cells(mask: Mask | Tensor | None, sizes: tuple[int, int, int, int]) -> Tensor:
    """Which query may attend to which key, bool [B, H, Q, K], by the mask's predicate."""
    if mask is None or isinstance(mask, Tensor):
        return (torch.ones(()) > 0 if mask is None else mask).expand(sizes)
    index = (torch.arange(n).view(-1, *[1] * (3 - dim)) for dim, n in enumerate(sizes))
    return torch.as_tensor(mask.aligned(*sizes[2:]).allows(*index)).expand(sizes)
