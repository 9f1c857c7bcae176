import math
from typing import List, Optional, Tuple

import torch
import torch.nn as nn


def get_slopes(n: int) -> List[float]:
    """Slopes of the ALiBi paper, interpolated when ``n`` is not a power of two."""

    def get_slopes_power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return get_slopes_power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiAttention(nn.Module):
    """MPT-style causal attention with linear biases.

    Args:
        d_model: model width.
        n_heads: number of heads, need not be a power of two.
        clip_qkv: clamp the fused projection to [-clip_qkv, clip_qkv] if given.
        qk_ln: layer norm on queries and keys over the full width.
        attn_pdrop: dropout on the attention weights.
    """

    def __init__(
        self,
        d_model: int = 192,
        n_heads: int = 6,
        clip_qkv: Optional[float] = None,
        qk_ln: bool = False,
        attn_pdrop: float = 0.0,
    ):
        super().__init__()
        assert d_model % n_heads == 0
        self.d_model = d_model
        self.n_heads = n_heads
        self.clip_qkv = clip_qkv
        self.qk_ln = qk_ln
        self.softmax_scale = 1 / math.sqrt(d_model / n_heads)
        self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        if qk_ln:
            self.q_ln = nn.LayerNorm(d_model)
            self.k_ln = nn.LayerNorm(d_model)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.register_buffer("slopes", torch.tensor(get_slopes(n_heads)).view(1, n_heads, 1, 1), persistent=False)

    def forward(
        self,
        x: torch.Tensor,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        key_padding_mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """key_padding_mask: (batch, past + seq) bool, as in MPT **True marks tokens to keep**."""
        b, s, _ = x.shape
        qkv = self.Wqkv(x)
        if self.clip_qkv is not None:
            qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = qkv.chunk(3, dim=2)
        if self.qk_ln:
            query, key = self.q_ln(query).to(value.dtype), self.k_ln(key).to(value.dtype)

        q, k, v = (t.reshape(b, s, self.n_heads, -1).transpose(1, 2) for t in (query, key, value))
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        s_k = k.size(2)

        attn_weight = q.matmul(k.transpose(-1, -2)) * self.softmax_scale

        # queries are the last s of the s_k positions
        q_pos = torch.arange(s_k - s, s_k, device=x.device)[:, None]
        k_pos = torch.arange(s_k, device=x.device)[None, :]
        attn_weight = attn_weight + self.slopes.to(attn_weight.dtype) * (k_pos - q_pos)

        min_val = torch.finfo(attn_weight.dtype).min
        if key_padding_mask is not None:
            attn_weight = attn_weight.masked_fill(~key_padding_mask.bool()[:, None, None, :], min_val)
        attn_weight = attn_weight.masked_fill(k_pos > q_pos, min_val)

        attn_weight = self.attn_dropout(torch.softmax(attn_weight, dim=-1))
        out = attn_weight.matmul(v).transpose(1, 2).reshape(b, s, self.d_model)
        return self.out_proj(out), (k, v)
