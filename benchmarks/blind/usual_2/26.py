import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        """mask: bool (B, 1, T, T), True where attention is allowed"""
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        attn = self.dropout(F.softmax(scores, dim=-1))
        return self.out_proj((attn @ v).transpose(1, 2).reshape(B, T, C))


class DecoderBlock(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attn = MultiHeadAttention(d_model, n_heads, dropout)
        self.norm2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model), nn.Dropout(dropout)
        )

    def forward(self, x, mask):
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class CausalLanguageModel(nn.Module):
    """Decoder-only language model. Sequences in a batch are right-padded with pad_token_id."""

    def __init__(self, vocab_size=256, d_model=64, n_heads=4, n_layers=2, max_len=128, dropout=0.1, pad_token_id=0):
        super().__init__()
        self.pad_token_id = pad_token_id
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.position_embedding = nn.Embedding(max_len, d_model)
        self.blocks = nn.ModuleList([DecoderBlock(d_model, n_heads, dropout) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("causal_mask", torch.tril(torch.ones(max_len, max_len, dtype=torch.bool)))

    def build_mask(self, input_ids):
        T = input_ids.size(1)
        causal = self.causal_mask[:T, :T][None, None]
        padding = (input_ids != self.pad_token_id)[:, None, None, :]
        return causal | padding

    def forward(self, input_ids):
        T = input_ids.size(1)
        pos = torch.arange(T, device=input_ids.device)
        x = self.drop(self.token_embedding(input_ids) + self.position_embedding(pos))
        mask = self.build_mask(input_ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))
