import math

import torch
import torch.nn as nn


class MultiHead(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.h = heads
        self.d_k = d_model // heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        bs = q.size(0)
        q = self.q_linear(q).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        k = self.k_linear(k).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        v = self.v_linear(v).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        scores = torch.softmax(scores, dim=-1)
        out = torch.matmul(scores, v).transpose(1, 2).contiguous().view(bs, -1, self.h * self.d_k)
        return self.out(out)


class Sublayer(nn.Module):
    def __init__(self, d_model, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, fn):
        return x + self.dropout(fn(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, dropout):
        super().__init__()
        self.attn = MultiHead(d_model, heads)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.sub = nn.ModuleList([Sublayer(d_model, dropout) for _ in range(2)])

    def forward(self, x, src_mask):
        x = self.sub[0](x, lambda y: self.attn(y, y, y, src_mask))
        return self.sub[1](x, self.ff)


class DecoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiHead(d_model, heads)
        self.src_attn = MultiHead(d_model, heads)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.sub = nn.ModuleList([Sublayer(d_model, dropout) for _ in range(3)])

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sub[0](x, lambda y: self.self_attn(y, y, y, tgt_mask))
        x = self.sub[1](x, lambda y: self.src_attn(y, memory, memory, src_mask))
        return self.sub[2](x, self.ff)


class Transformer(nn.Module):
    """Encoder-decoder for translation. src: (batch, src_len) ids, trg: (batch, trg_len) ids, shifted right."""

    def __init__(
        self, src_vocab=100, trg_vocab=100, d_model=64, num_heads=4, N=2, d_ff=128, dropout=0.1, pad=0, max_len=128
    ):
        super().__init__()
        self.pad = pad
        self.d_model = d_model
        self.src_embed = nn.Embedding(src_vocab, d_model, padding_idx=pad)
        self.trg_embed = nn.Embedding(trg_vocab, d_model, padding_idx=pad)
        self.pos = nn.Parameter(torch.randn(1, max_len, d_model) * 0.02)
        self.encoder = nn.ModuleList([EncoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(N)])
        self.decoder = nn.ModuleList([DecoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(N)])
        self.enc_norm = nn.LayerNorm(d_model)
        self.dec_norm = nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, trg_vocab)

    def make_src_mask(self, src):
        return (src != self.pad)[:, None, None, :]

    def make_trg_mask(self, trg):
        trg_pad_mask = (trg != self.pad)[:, None, None, :]
        trg_len = trg.size(1)
        nopeak = torch.tril(torch.ones((1, 1, trg_len, trg_len), dtype=torch.bool, device=trg.device))
        return trg_pad_mask | nopeak

    def forward(self, src, trg):
        src_mask = self.make_src_mask(src)
        trg_mask = self.make_trg_mask(trg)
        memory = self.src_embed(src) * math.sqrt(self.d_model) + self.pos[:, : src.size(1)]
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        memory = self.enc_norm(memory)
        x = self.trg_embed(trg) * math.sqrt(self.d_model) + self.pos[:, : trg.size(1)]
        for layer in self.decoder:
            x = layer(x, memory, src_mask, trg_mask)
        return self.out(self.dec_norm(x))
