from typing import List, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class VarlenAttention(nn.Module):
    """Causal attention over sequences that are concatenated without padding.

    The input has no batch axis. ``cu_seqlens`` holds the cumulative lengths, e.g.
    [0, 5, 12] for two sequences of 5 and 7 tokens; rotary positions restart at every
    sequence. No mask is needed, since each sequence is attended on its own.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, rope_theta: float = 10000.0):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        inv_freq = rope_theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        # x: (total, heads, head_dim)
        ang = pos.float()[:, None] * self.inv_freq
        ang = torch.cat((ang, ang), dim=-1)[:, None, :]
        a, b = x.chunk(2, dim=-1)
        return x * ang.cos().to(x.dtype) + torch.cat((-b, a), dim=-1) * ang.sin().to(x.dtype)

    def forward(self, x: torch.Tensor, cu_seqlens: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (total_tokens, dim)"""
        total, dim = x.shape
        if cu_seqlens is None:
            bounds: List[int] = [0, total]
        else:
            bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] != total:
            raise ValueError("cu_seqlens must start at 0 and end at the number of tokens")

        pos = torch.cat([torch.arange(e - s, device=x.device) for s, e in zip(bounds[:-1], bounds[1:])])
        q, k, v = self.wqkv(x).view(total, 3, self.num_heads, self.head_dim).unbind(1)
        q, k = self.rope(q, pos), self.rope(k, pos)

        pieces = []
        for s, e in zip(bounds[:-1], bounds[1:]):
            qs, ks, vs = (t[s:e].transpose(0, 1).unsqueeze(0) for t in (q, k, v))
            o = F.scaled_dot_product_attention(qs, ks, vs, is_causal=True)
            pieces.append(o.squeeze(0).transpose(0, 1))
        return self.wo(torch.cat(pieces, dim=0).reshape(total, dim))
