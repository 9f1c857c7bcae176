import torch
import torch.nn as nn
from torch.nn import functional as F
from dataclasses import dataclass


@dataclass
class GPTConfig:
    block_size: int = 256
    n_head: int = 4
    n_embd: int = 64
    dropout: float = 0.0
    bias: bool = False
    mup_base_head_dim: int = 16


class CausalSelfAttention(nn.Module):
    """
    nanoGPT attention under the maximal update parametrization (muP).

    muP asks for a logit multiplier that shrinks like 1/d instead of 1/sqrt(d) (Yang et al., 2022,
    Definition 4.1). We use sqrt(d_base) / d so that the model at the base width (head size
    d_base) has exactly the usual 1/sqrt(d) and hyper-parameters carry over from it.
    """

    def __init__(self, config: GPTConfig = GPTConfig()):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.dropout = config.dropout
        head_dim = config.n_embd // config.n_head
        self.attn_mult = config.mup_base_head_dim ** 0.5 / head_dim

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)

        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=None,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            scale=self.attn_mult,
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))
