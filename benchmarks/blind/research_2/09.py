from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn


@dataclass
class SoftcapConfig:
    hidden_size: int = 64
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    query_pre_attn_scalar: int = 16
    attn_logit_softcapping: float = 5.0
    sliding_window: Optional[int] = None
    rope_theta: float = 10000.0


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class CappedAttention(nn.Module):
    """Causal grouped-query attention with logit soft-capping: cap * tanh(logits / cap)."""

    def __init__(self, config: Optional[SoftcapConfig] = None):
        super().__init__()
        config = config or SoftcapConfig()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.num_kv = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.scaling = config.query_pre_attn_scalar ** -0.5
        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.num_kv * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.num_kv * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=False)
        inv_freq = 1.0 / (config.rope_theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, x):
        t = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
        freqs = torch.outer(t, self.inv_freq.float())
        emb = torch.cat((freqs, freqs), dim=-1)
        return x * emb.cos().to(x.dtype) + rotate_half(x) * emb.sin().to(x.dtype)

    def _blocked(self, n, device):
        i = torch.arange(n, device=device)
        dist = i[:, None] - i[None, :]
        blocked = dist < 0
        if self.config.sliding_window is not None:
            blocked = blocked | (dist >= self.config.sliding_window)
        return blocked

    def forward(self, hidden_states):
        bsz, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, n, self.num_kv, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, n, self.num_kv, self.head_dim).transpose(1, 2)
        q, k = self._rope(q), self._rope(k)
        k = k.repeat_interleave(self.num_heads // self.num_kv, dim=1)
        v = v.repeat_interleave(self.num_heads // self.num_kv, dim=1)

        attn = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        attn = attn.masked_fill(self._blocked(n, attn.device), torch.finfo(attn.dtype).min)
        cap = self.config.attn_logit_softcapping
        if cap is not None:
            attn = cap * torch.tanh(attn / cap)
        attn = torch.softmax(attn, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(bsz, n, -1)
        return self.o_proj(out)
