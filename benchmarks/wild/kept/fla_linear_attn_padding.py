"""Padding is zeroed in the values only; padded keys stay in the normaliser of the linear attention.

fla-org/flash-linear-attention #1263 (2026)
https://github.com/fla-org/flash-linear-attention/issues/1263
"""
from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


def fused_linear_attn(q, k, v, scale, normalize):
    """Causal linear attention in recurrent form; q, k, v of shape `[B, T, H, D]`."""
    B, T, H, D = q.shape
    S = q.new_zeros(B, H, D, v.shape[-1])
    z = q.new_zeros(B, H, D)
    out = []
    for t in range(T):
        S = S + k[:, t, :, :, None] * v[:, t, :, None, :]
        z = z + k[:, t]
        qt = q[:, t] * scale
        o = (qt[..., None] * S).sum(-2)
        if normalize:
            o = o / ((qt * z).sum(-1, keepdim=True) + 1e-10)
        out.append(o)
    return torch.stack(out, dim=1)


class _LinearAttentionBase(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, do_feature_map_norm: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.do_feature_map_norm = do_feature_map_norm
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.LongTensor | None = None) -> torch.Tensor:
        """
        Args:
            hidden_states: `[batch_size, seq_len, hidden_size]`
            attention_mask: `[batch_size, seq_len]` 0/1 matrix indicating the padded tokens by 0, left padding.
        """
        q = F.elu(self.q_proj(hidden_states)) + 1
        k = F.elu(self.k_proj(hidden_states)) + 1
        v = self.v_proj(hidden_states)
        if attention_mask is not None:
            q, k, v = self.mask_padding(q, k, v, attention_mask)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)) for x in (q, k, v))
        o = fused_linear_attn(q, k, v, q.shape[-1] ** -0.5, self.do_feature_map_norm)
        return self.o_proj(o.flatten(2))


def broken() -> nn.Module:
    class LinearAttention(_LinearAttentionBase):
        def mask_padding(self, q, k, v, attention_mask):
            v = v.mul(attention_mask.unsqueeze(-1))
            return q, k, v

    torch.manual_seed(0)
    return LinearAttention(32, 4)


def fixed() -> nn.Module:
    class LinearAttention(_LinearAttentionBase):
        def mask_padding(self, q, k, v, attention_mask):
            v = v.mul(attention_mask.unsqueeze(-1))
            k = k.mul(attention_mask.unsqueeze(-1))
            return q, k, v

    torch.manual_seed(0)
    return LinearAttention(32, 4)


def example():
    g = torch.Generator().manual_seed(15)
    x = torch.randn(2, 10, 32, generator=g)
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, :4] = 0
    return (x,), {"attention_mask": mask}
