"""Attention from its definition, in float64, one query at a time: what every kernel is compared with.

    s = scale · q kᵀ;   s = softcap · tanh(s / softcap);   s += bias - slope · |i + K - Q - j|
    A = exp(s) / (Σ exp(s) + exp(sink))

The sums run over the keys that mask and bias allow; a bias of -inf forbids as the mask does. What other keys hold never
enters, not even NaN; in an allowed cell NaN spreads as in any arithmetic. A query without keys gets 0. Bias and score
plus bias are rounded to float32, or float64 if q is: beside finfo.min all scores of a row are equal, and the weights.
Slopes times distances belong to the bias.
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
    slopes: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """[B, H, Q, E] in float64; arguments as in `headwise.attention`, `dtype` that of the call if it is not q's."""
    (batch, heads, q_len, d), k_len = q.shape, k.shape[2]
    sizes, dtype = (batch, heads, q_len, k_len), torch.promote_types(dtype or q.dtype, torch.float32)
    bias = None if bias is None else bias.to(dtype).expand(sizes)
    allowed = cells(mask, sizes, bias)
    if slopes is not None:
        apart = (torch.arange(q_len)[:, None] + k_len - q_len - torch.arange(k_len)).abs()
        lowered = slopes.double()[:, None, None] * apart.expand(sizes)
        bias = (-lowered if bias is None else bias - lowered).to(dtype)
    q, k, v = q.double(), *(x.double().repeat_interleave(heads // k.shape[1], dim=1) for x in (k, v))
    sink = (torch.full((heads,), -math.inf) if sinks is None else sinks).double()[None, :, None].expand(batch, -1, 1)
    rows = [q.new_zeros((batch, heads, 0, v.shape[-1]))]
    for i in range(q_len):
        seen = allowed[:, :, i, :, None]
        s = (d**-0.5 if scale is None else scale) * (q[:, :, i, None] * torch.where(seen, k, 0.0)).sum(-1)
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        s = s if bias is None else (s + bias[:, :, i]).to(dtype).double()
        s = torch.cat([s.masked_fill(~seen[..., 0], -math.inf), sink], dim=-1)
        highest = s.detach().amax(-1, keepdim=True)
        e = torch.exp(s - highest.masked_fill(highest == -math.inf, 0.0))[..., None]
        total = e.sum(-2, keepdim=True)
        weights = torch.where(seen, e[:, :, :-1] / total.masked_fill(total == 0.0, 1.0), 0.0)
        rows.append((weights * torch.where(seen, v, 0.0)).sum(-2, keepdim=True))
    return torch.cat(rows, dim=2)


def cells(mask: Mask | Tensor | None, sizes: tuple[int, int, int, int], bias: Tensor | None = None) -> Tensor:
    """Which query may attend to which key, bool [B, H, Q, K]: by the mask's predicate, and where the bias is -inf."""
    allowed = torch.tensor(True) if bias is None else bias != -math.inf
    if isinstance(mask, Mask):
        index = (torch.arange(n).view(-1, *[1] * (3 - dim)) for dim, n in enumerate(sizes))
        mask = mask.aligned(*sizes[2:]).allows(*index)
    return (allowed if mask is None else allowed & mask).expand(sizes)
