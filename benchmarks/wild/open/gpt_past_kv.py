"""SDPA's is_causal aligns to the top-left corner, so new tokens after a KV cache see only the first keys.

pytorch/pytorch #110144 (2023)
https://github.com/pytorch/pytorch/issues/110144
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 50
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32
    bias: bool = False


class _CausalSelfAttentionBase(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        # key, query, value projections for all heads, but in a batch
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        # output projection
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head = config.n_head
        self.n_embd = config.n_embd


class Block(nn.Module):
    def __init__(self, config, attention):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = nn.Sequential(nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(),
                                 nn.Linear(4 * config.n_embd, config.n_embd))

    def forward(self, x, past_kv=None):
        y, present = self.attn(self.ln_1(x), past_kv)
        x = x + y
        return x + self.mlp(self.ln_2(x)), present


class GPT(nn.Module):
    def __init__(self, config, attention):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            h=nn.ModuleList([Block(config, attention) for _ in range(config.n_layer)]),
            ln_f=nn.LayerNorm(config.n_embd, bias=config.bias),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, past_kvs=None):
        """idx: (B, T) new tokens; past_kvs: per layer (key, value) of earlier tokens. Returns (logits, past_kvs)."""
        past_len = 0 if past_kvs is None else past_kvs[0][0].size(2)
        pos = torch.arange(past_len, past_len + idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        presents = []
        for i, block in enumerate(self.transformer.h):
            x, present = block(x, None if past_kvs is None else past_kvs[i])
            presents.append(present)
        return self.lm_head(self.transformer.ln_f(x)), presents


def broken() -> nn.Module:
    class CausalSelfAttention(_CausalSelfAttentionBase):
        def forward(self, x, past_kv=None):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
            k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
            q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
            v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
            if past_kv is not None:
                k = torch.cat((past_kv[0], k), dim=2)
                v = torch.cat((past_kv[1], v), dim=2)

            # efficient attention using Flash Attention CUDA kernels
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)
            y = y.transpose(1, 2).contiguous().view(B, T, C)
            return self.c_proj(y), (k, v)

    torch.manual_seed(0)
    return GPT(GPTConfig(), CausalSelfAttention)


def fixed() -> nn.Module:
    class CausalSelfAttention(_CausalSelfAttentionBase):
        def forward(self, x, past_kv=None):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
            k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
            q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
            v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)  # (B, nh, T, hs)
            if past_kv is not None:
                k = torch.cat((past_kv[0], k), dim=2)
                v = torch.cat((past_kv[1], v), dim=2)

            # efficient attention using Flash Attention CUDA kernels
            S = k.size(2)
            mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(diagonal=S - T)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            y = y.transpose(1, 2).contiguous().view(B, T, C)
            return self.c_proj(y), (k, v)

    torch.manual_seed(0)
    return GPT(GPTConfig(), CausalSelfAttention)
