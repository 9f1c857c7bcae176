import math

import torch
import torch.nn as nn


class MultiHead(nn.Module):
    def __init__(self, d_model, h, dropout=0.1):
        super().__init__()
        self.h = h
        self.d_k = d_model // h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        nb = query.size(0)
        query, key, value = [
            lin(x).view(nb, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        p = self.dropout(scores.softmax(dim=-1))
        x = (p @ value).transpose(1, 2).contiguous().view(nb, -1, self.h * self.d_k)
        return self.linears[-1](x)


class Sublayer(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, fn):
        return x + self.dropout(fn(self.norm(x)))


class EncoderDecoder(nn.Module):
    """Sequence-to-sequence Transformer on token ids."""

    def __init__(self, src_vocab=100, tgt_vocab=100, d_model=64, h=4, d_ff=128, max_len=64,
                 dropout=0.1, pad=0):
        super().__init__()
        self.pad = pad
        self.src_emb = nn.Embedding(src_vocab, d_model, padding_idx=pad)
        self.tgt_emb = nn.Embedding(tgt_vocab, d_model, padding_idx=pad)
        self.pos = nn.Embedding(max_len, d_model)
        self.enc_attn = MultiHead(d_model, h, dropout)
        self.dec_attn = MultiHead(d_model, h, dropout)
        self.src_attn = MultiHead(d_model, h, dropout)
        self.enc_ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.dec_ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.enc_sub = nn.ModuleList([Sublayer(d_model, dropout) for _ in range(2)])
        self.dec_sub = nn.ModuleList([Sublayer(d_model, dropout) for _ in range(3)])
        self.enc_norm = nn.LayerNorm(d_model)
        self.dec_norm = nn.LayerNorm(d_model)
        self.generator = nn.Linear(d_model, tgt_vocab)

    def embed(self, table, ids):
        pos = torch.arange(ids.size(1), device=ids.device)
        return table(ids) * math.sqrt(table.embedding_dim) + self.pos(pos)

    def encode(self, src, src_mask):
        x = self.embed(self.src_emb, src)
        x = self.enc_sub[0](x, lambda y: self.enc_attn(y, y, y, src_mask))
        x = self.enc_sub[1](x, self.enc_ff)
        return self.enc_norm(x)

    def decode(self, tgt, memory, src_mask, tgt_mask):
        x = self.embed(self.tgt_emb, tgt)
        x = self.dec_sub[0](x, lambda y: self.dec_attn(y, y, y, tgt_mask))
        x = self.dec_sub[1](x, lambda y: self.src_attn(y, memory, memory))
        x = self.dec_sub[2](x, self.dec_ff)
        return self.dec_norm(x)

    def forward(self, src, tgt):
        src_mask = (src != self.pad)[:, None, None, :]
        n = tgt.size(1)
        causal = torch.ones(n, n, dtype=torch.bool, device=tgt.device).tril()
        tgt_mask = (tgt != self.pad)[:, None, None, :] & causal
        memory = self.encode(src, src_mask)
        return self.generator(self.decode(tgt, memory, src_mask, tgt_mask))
