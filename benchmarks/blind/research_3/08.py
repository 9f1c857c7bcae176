from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn


@dataclass
class Config:
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 24
    query_pre_attn_scalar: float = 16.0  # hidden_size / num_heads, not head_dim
    attn_logit_softcapping: Optional[float] = 50.0
    rope_theta: float = 10000.0
    sliding_window: int = 4


def apply_rotary(x: torch.Tensor, theta: float) -> torch.Tensor:
    """x: [B, H, T, D]"""
    T, D = x.shape[-2:]
    inv = 1.0 / theta ** (torch.arange(0, D, 2, device=x.device).float() / D)
    ang = torch.outer(torch.arange(T, device=x.device).float(), inv)
    cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class GemmaAttention(nn.Module):
    """Even layers are local (sliding window), odd ones global. Always causal."""

    def __init__(self, config: Config = None, layer_idx: int = 0):
        super().__init__()
        config = config or Config()
        self.config = config
        self.is_sliding = layer_idx % 2 == 0
        self.n_rep = config.num_heads // config.num_kv_heads
        self.scaling = config.query_pre_attn_scalar ** -0.5
        self.q_proj = nn.Linear(config.hidden_size, config.num_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        B, T, _ = hidden_states.shape
        cfg = self.config
        q = self.q_proj(hidden_states).view(B, T, cfg.num_heads, cfg.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(B, T, cfg.num_kv_heads, cfg.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(B, T, cfg.num_kv_heads, cfg.head_dim).transpose(1, 2)

        q = apply_rotary(q, cfg.rope_theta)
        k = apply_rotary(k, cfg.rope_theta)
        k = k.repeat_interleave(self.n_rep, dim=1)
        v = v.repeat_interleave(self.n_rep, dim=1)

        logits = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        if cfg.attn_logit_softcapping is not None:
            cap = cfg.attn_logit_softcapping
            logits = torch.tanh(logits / cap) * cap

        i = torch.arange(T, device=logits.device)
        dist = i[:, None] - i[None, :]
        drop = dist < 0
        if self.is_sliding:
            drop = drop | (dist >= cfg.sliding_window)
        logits = logits.masked_fill(drop, torch.finfo(logits.dtype).min)

        probs = torch.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(B, T, -1)
        return self.o_proj(out)
