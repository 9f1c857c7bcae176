from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedRotaryAttention(nn.Module):
    """Causal attention over packed rows of documents.

    segment_ids: (B, T) integers, one id per document, 0 for padding. A token sees itself and the earlier
    tokens with the same id. Padding forms a segment of its own, so no row of the mask is empty;
    what comes out there is to be ignored.

    The rotary positions run through the row without restarting. Attention depends on differences
    of positions only, so every document gets the same result as it would alone.
    """

    def __init__(self, dim: int = 64, n_heads: int = 8, n_kv_heads: int = 4, theta: float = 10000.0, dropout: float = 0.0):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.dropout = dropout
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        half = self.head_dim // 2
        self.register_buffer("inv_freq", theta ** (-torch.arange(half).float() / half), persistent=False)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        # x: (B, H, T, D), channel c is paired with channel c + D/2
        angle = torch.arange(x.shape[2], device=x.device).float()[:, None] * self.inv_freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x: torch.Tensor, segment_ids: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, T, _ = x.shape
        q = self._rotate(self.wq(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2))
        k = self._rotate(self.wk(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2))
        v = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)

        rep = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)

        p = self.dropout if self.training else 0.0
        if segment_ids is None:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
            causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=same & causal, dropout_p=p)
        return self.wo(out.transpose(1, 2).reshape(B, T, -1))
