import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class MuGPTConfig:
    n_embd: int = 64
    n_head: int = 4
    base_head_dim: int = 8
    n_layer: int = 12
    dropout: float = 0.0


class CausalSelfAttention(nn.Module):
    """Scale follows muP: sqrt(base_head_dim) / head_dim, i.e. 1/d instead of 1/sqrt(d), equal to
    the standard scale at the width of the base model. qkv is stored interleaved per head."""

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.n_head = config.n_head
        self.dropout = config.dropout
        head_dim = config.n_embd // config.n_head
        self.softmax_scale = math.sqrt(config.base_head_dim) / head_dim
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        B, T, C = x.size()
        qkv = self.c_attn(x).view(B, T, self.n_head, 3, C // self.n_head)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(dim=3))
        y = F.scaled_dot_product_attention(
            q, k, v,
            is_causal=True,
            scale=self.softmax_scale,
            dropout_p=self.dropout if self.training else 0.0,
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MuBlock(nn.Module):
    """Attention and MLP in parallel on one shared norm, branches damped by 1 / sqrt(2 * n_layer)."""

    def __init__(self, config=None):
        super().__init__()
        config = config if config is not None else MuGPTConfig()
        self.ln = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.c_out = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)
        self.branch_scale = (2 * config.n_layer) ** -0.5

    def forward(self, x):
        h = self.ln(x)
        return x + self.branch_scale * (self.attn(h) + self.c_out(F.gelu(self.c_fc(h))))
