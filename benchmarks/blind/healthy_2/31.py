"""Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, KV cache."""
from dataclasses import dataclass, field
from typing import List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        var = x.float().pow(2).mean(-1, keepdim=True)
        return (x.float() * torch.rsqrt(var + self.eps)).type_as(x) * self.weight


@dataclass
class KVCache:
    """Keys (already rotated) and values of every layer, plus the validity of each column."""

    layers: List[Tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    valid: Optional[torch.Tensor] = None  # (B, cached length) bool

    def update(self, layer_idx, k, v):
        if layer_idx == len(self.layers):
            self.layers.append((k, v))
        else:
            pk, pv = self.layers[layer_idx]
            self.layers[layer_idx] = (torch.cat([pk, k], dim=2), torch.cat([pv, v], dim=2))
        return self.layers[layer_idx]


def apply_rope(x, cos, sin):
    """Interleaved convention: channel pairs are (0, 1), (2, 3), ..."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class GroupedQueryAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, layer_idx):
        super().__init__()
        assert dim % n_heads == 0 and n_heads % n_kv_heads == 0
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.layer_idx = layer_idx
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x, cos, sin, mask, cache: Optional[KVCache]):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        if cache is not None:
            k, v = cache.update(self.layer_idx, k, v)
        rep = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class LlamaBlock(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, hidden, layer_idx):
        super().__init__()
        self.attention_norm = RMSNorm(dim)
        self.attention = GroupedQueryAttention(dim, n_heads, n_kv_heads, layer_idx)
        self.ffn_norm = RMSNorm(dim)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x, cos, sin, mask, cache):
        x = x + self.attention(self.attention_norm(x), cos, sin, mask, cache)
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class TinyLlama(nn.Module):
    """forward(tokens, attention_mask=None, cache=None) -> logits (B, T, vocab).

    attention_mask (B, T) is 1 on real tokens of this call and 0 on (left) padding. A cache is
    filled in place; later calls pass only the new tokens.
    """

    def __init__(self, vocab_size=1000, dim=64, n_layers=2, n_heads=4, n_kv_heads=2,
                 hidden=176, rope_theta=10000.0):
        super().__init__()
        head_dim = dim // n_heads
        assert head_dim % 2 == 0
        self.embed = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(LlamaBlock(dim, n_heads, n_kv_heads, hidden, i) for i in range(n_layers))
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        inv_freq = rope_theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, tokens, attention_mask=None, cache: Optional[KVCache] = None):
        b, t = tokens.shape
        valid = torch.ones_like(tokens, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        if cache is not None:
            if cache.valid is not None:
                valid = torch.cat([cache.valid, valid], dim=1)
            cache.valid = valid
        total = valid.size(1)
        # positions count real tokens only, so left padding does not shift a prompt
        positions = (valid.long().cumsum(dim=1) - 1).clamp(min=0)[:, total - t:]
        angle = positions[:, None, :, None].float() * self.inv_freq
        x = self.embed(tokens)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)

        row = torch.arange(total - t, total, device=tokens.device)[:, None]
        col = torch.arange(total, device=tokens.device)[None, :]
        # a padded query sees itself, otherwise its row would be empty
        mask = ((col <= row) & valid[:, None, :]) | (col == row)
        mask = mask.unsqueeze(1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask, cache)
        return self.output(self.norm(x))

    @torch.no_grad()
    def generate(self, tokens, attention_mask=None, max_new_tokens=16):
        """Greedy continuation of left-padded prompts; returns only the new tokens."""
        cache, new = KVCache(), []
        cur, cur_mask = tokens, attention_mask
        for _ in range(max_new_tokens):
            cur = self(cur, cur_mask, cache)[:, -1].argmax(dim=-1, keepdim=True)
            cur_mask = None  # generated tokens are always real
            new.append(cur)
        return torch.cat(new, dim=1)
