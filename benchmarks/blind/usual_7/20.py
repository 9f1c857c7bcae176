from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class EncoderConfig:
    n_embd: int = 64
    n_head: int = 4
    dropout: float = 0.1
    bias: bool = True


class Attention(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.attn_p = config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x, keep=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        mask = keep[:, None, None, :] if keep is not None else None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.attn_p)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class EncoderBlock(nn.Module):
    """Pre-norm encoder block. keep: optional (B, T) bool, True for tokens."""

    def __init__(self, config: Optional[EncoderConfig] = None):
        super().__init__()
        config = config or EncoderConfig()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias),
        )
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x, keep=None):
        x = x + self.drop(self.attn(self.ln_1(x), keep))
        x = x + self.drop(self.mlp(self.ln_2(x)))
        return x
