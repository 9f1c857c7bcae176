"""Whole encoder and decoder layers around an attention of their own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    def __init__(self, hid_dim: int, n_heads: int, dropout: float):
        super().__init__()
        assert hid_dim % n_heads == 0
        self.n_heads, self.head_dim = n_heads, hid_dim // n_heads
        self.fc_q = nn.Linear(hid_dim, hid_dim)
        self.fc_k = nn.Linear(hid_dim, hid_dim)
        self.fc_v = nn.Linear(hid_dim, hid_dim)
        self.fc_o = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        batch_size = query.shape[0]
        Q = self.fc_q(query).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = self.fc_k(key).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = self.fc_v(value).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / math.sqrt(self.head_dim)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), V).permute(0, 2, 1, 3).contiguous()
        return self.fc_o(x.view(batch_size, -1, self.n_heads * self.head_dim)), attention


class EncoderLayer(nn.Module):
    """src_mask: [batch, 1, 1, src len], 1 for tokens, 0 for padding."""

    def __init__(self, hid_dim: int, n_heads: int, pf_dim: int, dropout: float = 0.1):
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.ff_layer_norm = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttention(hid_dim, n_heads, dropout)
        self.feedforward = nn.Sequential(nn.Linear(hid_dim, pf_dim), nn.ReLU(), nn.Linear(pf_dim, hid_dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        _src, _ = self.self_attention(src, src, src, src_mask)
        src = self.self_attn_layer_norm(src + self.dropout(_src))
        return self.ff_layer_norm(src + self.dropout(self.feedforward(src)))


class DecoderLayer(nn.Module):
    """trg_mask: [batch, 1, 1, trg len] and src_mask: [batch, 1, 1, src len], 1 for tokens, 0 for padding."""

    def __init__(self, hid_dim: int, n_heads: int, pf_dim: int, dropout: float = 0.1):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(hid_dim) for _ in range(3))
        self.self_attention = MultiHeadAttention(hid_dim, n_heads, dropout)
        self.encoder_attention = MultiHeadAttention(hid_dim, n_heads, dropout)
        self.feedforward = nn.Sequential(nn.Linear(hid_dim, pf_dim), nn.ReLU(), nn.Linear(pf_dim, hid_dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, trg: Tensor, enc_src: Tensor, trg_mask: Tensor | None = None, src_mask: Tensor | None = None):
        n = trg.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool, device=trg.device).tril()
        mask = causal if trg_mask is None else causal & (trg_mask != 0)
        _trg, _ = self.self_attention(trg, trg, trg, mask)
        trg = self.norms[0](trg + self.dropout(_trg))
        _trg, _ = self.encoder_attention(trg, enc_src, enc_src, src_mask)
        trg = self.norms[1](trg + self.dropout(_trg))
        return self.norms[2](trg + self.dropout(self.feedforward(trg)))


class CrossDecoderLayer(nn.Module):
    """x attends to memory. x_mask: [batch, x len] and memory_mask: [batch, memory len], True = a real token."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attention = MultiHeadAttention(dim, heads, 0.0)
        self.cross_attention = MultiHeadAttention(dim, heads, 0.0)

    def forward(self, x: Tensor, memory: Tensor, x_mask: Tensor | None = None, memory_mask: Tensor | None = None):
        if x_mask is not None:
            x_mask = x_mask[:, None, None, :]
        if memory_mask is not None:
            memory_mask = memory_mask[:, None, None, :]
        h = self.norm1(x)
        x = x + self.self_attention(h, h, h, x_mask)[0]
        return x + self.cross_attention(self.norm2(x), memory, memory, x_mask)[0]


class CrossAttention(nn.Module):
    """query_mask: [batch, queries] and key_mask: [batch, keys], True = a real token."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None):
        b, n, d = x.shape
        q = self.query(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.key(context).view(b, -1, self.heads, d // self.heads).transpose(1, 2)
        v = self.value(context).view(b, -1, self.heads, d // self.heads).transpose(1, 2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        if query_mask is not None:
            scores = scores.masked_fill(~query_mask[:, None, None, :], -1e4)
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        return self.out(out)


class PreNormBlock(nn.Module):
    """A GPT block: causal attention and a feed-forward part, each after a norm and beside a residual."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.GELU(), nn.Linear(2 * d_model, d_model))

    def attend(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))
