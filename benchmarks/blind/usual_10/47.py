from typing import Optional

import torch
from torch import nn


class GemmaRMSNorm(nn.Module):
    """Weight is stored as an offset from one, hence initialised with zeros."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class Gemma2Attention(nn.Module):
    """Gemma 2 attention sublayer: norm before and after, logit soft-capping, local or global window.

    ``query_pre_attn_scalar`` replaces the head dimension in the scale (the 27B model uses
    hidden_size / num_heads although its head_dim differs). ``sliding_window`` counts the token itself.
    """

    def __init__(
        self,
        hidden_size: int = 96,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 32,
        query_pre_attn_scalar: float = 24.0,
        softcap: float = 50.0,
        sliding_window: Optional[int] = 8,
    ):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.scaling = query_pre_attn_scalar ** -0.5
        self.softcap = softcap
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.input_layernorm = GemmaRMSNorm(hidden_size)
        self.post_attention_layernorm = GemmaRMSNorm(hidden_size)
        inv_freq = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotary(self, x):
        angle = torch.arange(x.shape[1], device=x.device).float()[:, None] * self.inv_freq.float()
        cos = torch.cat([angle.cos()] * 2, dim=-1)[:, None].to(x.dtype)
        sin = torch.cat([angle.sin()] * 2, dim=-1)[:, None].to(x.dtype)
        lo, hi = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-hi, lo], dim=-1) * sin

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        residual = hidden_states
        h = self.input_layernorm(hidden_states)
        b, t, _ = h.shape
        # (batch, time, heads, head_dim) all the way
        q = self.rotary(self.q_proj(h).view(b, t, self.num_heads, self.head_dim))
        k = self.rotary(self.k_proj(h).view(b, t, self.num_kv_heads, self.head_dim))
        v = self.v_proj(h).view(b, t, self.num_kv_heads, self.head_dim)

        q = q.view(b, t, self.num_kv_heads, self.num_heads // self.num_kv_heads, self.head_dim)
        scores = torch.einsum("btkgd,bskd->bkgts", q, k) * self.scaling
        scores = torch.tanh(scores / self.softcap) * self.softcap

        pos = torch.arange(t, device=h.device)
        dist = pos[:, None] - pos[None, :]
        visible = dist >= 0
        if self.sliding_window is not None:
            visible = visible & (dist < self.sliding_window)
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        probs = scores.float().softmax(-1).type_as(q)
        out = torch.einsum("bkgts,bskd->btkgd", probs, v).reshape(b, t, -1)
        return residual + self.post_attention_layernorm(self.o_proj(out))
