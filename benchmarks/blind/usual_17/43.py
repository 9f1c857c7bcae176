import math

import torch
import torch.nn as nn


def subsequent_mask(size, device=None):
    """True on and below the diagonal."""
    return torch.ones(1, size, size, dtype=torch.bool, device=device).tril()


class Attention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask):
        b = q.size(0)
        q = self.wq(q).view(b, -1, self.heads, self.d_k).transpose(1, 2)
        k = self.wk(k).view(b, -1, self.heads, self.d_k).transpose(1, 2)
        v = self.wv(v).view(b, -1, self.heads, self.d_k).transpose(1, 2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.d_k)
        scores = scores.masked_fill(~mask.unsqueeze(1), -1e9)
        out = scores.softmax(-1) @ v
        return self.wo(out.transpose(1, 2).reshape(b, -1, self.heads * self.d_k))


class Layer(nn.Module):
    def __init__(self, d_model, heads, d_ff, cross):
        super().__init__()
        self.self_attn = Attention(d_model, heads)
        self.cross_attn = Attention(d_model, heads) if cross else None
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norms = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(3 if cross else 2)])

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.norms[0](x + self.self_attn(x, x, x, mask))
        if self.cross_attn is not None:
            x = self.norms[1](x + self.cross_attn(x, memory, memory, memory_mask))
        return self.norms[-1](x + self.ff(x))


class Seq2SeqTransformer(nn.Module):
    """Small encoder-decoder Transformer for translation. Returns logits (B, T, tgt_vocab)."""

    def __init__(self, src_vocab=500, tgt_vocab=500, d_model=64, heads=4, d_ff=128,
                 num_layers=2, max_len=128, pad=0):
        super().__init__()
        self.pad = pad
        self.src_embed = nn.Embedding(src_vocab, d_model, padding_idx=pad)
        self.tgt_embed = nn.Embedding(tgt_vocab, d_model, padding_idx=pad)
        self.pos = nn.Embedding(max_len, d_model)
        self.encoder = nn.ModuleList([Layer(d_model, heads, d_ff, False) for _ in range(num_layers)])
        self.decoder = nn.ModuleList([Layer(d_model, heads, d_ff, True) for _ in range(num_layers)])
        self.generator = nn.Linear(d_model, tgt_vocab)

    def make_masks(self, src, tgt):
        src_mask = (src != self.pad).unsqueeze(-2)
        tgt_mask = (tgt != self.pad).unsqueeze(-2)
        tgt_mask = tgt_mask | subsequent_mask(tgt.size(-1), tgt.device)
        return src_mask, tgt_mask

    def forward(self, src, tgt):
        src_mask, tgt_mask = self.make_masks(src, tgt)
        memory = self.src_embed(src) + self.pos(torch.arange(src.size(1), device=src.device))
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        x = self.tgt_embed(tgt) + self.pos(torch.arange(tgt.size(1), device=tgt.device))
        for layer in self.decoder:
            x = layer(x, tgt_mask, memory, src_mask)
        return self.generator(x)
