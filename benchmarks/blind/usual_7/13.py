import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn


@dataclass
class SinkConfig:
    hidden_size: int = 64
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 16
    sliding_window: int = 0  # 0: full attention


def sdpa(Q, K, V, S, sm_scale, sliding_window=0):
    # Q: (B, T, n_kv, q_mult, d), K and V: (B, T, n_kv, d), S: (n_kv * q_mult,)
    B, T, n_kv, q_mult, d = Q.shape
    K = K[:, :, :, None, :].expand(-1, -1, -1, q_mult, -1)
    V = V[:, :, :, None, :].expand(-1, -1, -1, q_mult, -1)
    S = S.reshape(1, n_kv, q_mult, 1, 1).expand(B, -1, -1, T, -1)
    mask = torch.triu(Q.new_full((T, T), -float("inf")), diagonal=1)
    if sliding_window > 0:
        mask = mask + torch.tril(mask.new_full((T, T), -float("inf")), diagonal=-sliding_window)
    QK = torch.einsum("bqhmd,bkhmd->bhmqk", Q, K) * sm_scale
    QK = QK + mask
    QK = torch.cat([QK, S], dim=-1)
    W = torch.softmax(QK, dim=-1)
    W = W[..., :-1]
    out = torch.einsum("bhmqk,bkhmd->bqhmd", W, V)
    return out.reshape(B, T, -1)


class AttentionBlock(nn.Module):
    """Every head has a learned sink logit that takes part in the softmax and carries no value, so the
    weights over the real keys sum to less than one."""

    def __init__(self, config: Optional[SinkConfig] = None):
        super().__init__()
        config = config or SinkConfig()
        self.cfg = config
        self.head_dim = config.head_dim
        self.sinks = nn.Parameter(torch.zeros(config.num_attention_heads))
        self.norm = nn.LayerNorm(config.hidden_size)
        qkv_dim = config.head_dim * (config.num_attention_heads + 2 * config.num_key_value_heads)
        self.qkv = nn.Linear(config.hidden_size, qkv_dim)
        self.out = nn.Linear(config.head_dim * config.num_attention_heads, config.hidden_size)
        self.sm_scale = 1 / math.sqrt(config.head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        n_kv = self.cfg.num_key_value_heads
        n_q = self.cfg.num_attention_heads
        t = self.qkv(self.norm(x))
        q, k, v = t.split([n_q * self.head_dim, n_kv * self.head_dim, n_kv * self.head_dim], dim=-1)
        q = q.view(B, T, n_kv, n_q // n_kv, self.head_dim)
        k = k.view(B, T, n_kv, self.head_dim)
        v = v.view(B, T, n_kv, self.head_dim)
        t = sdpa(q, k, v, self.sinks, self.sm_scale, self.cfg.sliding_window)
        return x + self.out(t)
