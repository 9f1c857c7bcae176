import math
from functools import partial

import torch
import torch.nn as nn


def stack(make, n):
    return nn.ModuleList([make() for _ in range(n)])


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k = d_model // h
        self.h = h
        self.linears = stack(partial(nn.Linear, d_model, d_model), 4)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask):
        nb = query.size(0)
        query, key, value = [
            lin(x).view(nb, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        p_attn = self.dropout(scores.softmax(dim=-1))
        x = torch.matmul(p_attn, value).transpose(1, 2).contiguous().view(nb, -1, self.h * self.d_k)
        return self.linears[-1](x)


class Residual(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, h, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiHeadedAttention(h, d_model, dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.sublayer = stack(partial(Residual, d_model, dropout), 2)

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y, mask))
        return self.sublayer[1](x, self.ff)


class DecoderLayer(nn.Module):
    def __init__(self, d_model, h, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiHeadedAttention(h, d_model, dropout)
        self.src_attn = MultiHeadedAttention(h, d_model, dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.sublayer = stack(partial(Residual, d_model, dropout), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y, tgt_mask))
        x = self.sublayer[1](x, lambda y: self.src_attn(y, memory, memory, src_mask))
        return self.sublayer[2](x, self.ff)


class TranslationTransformer(nn.Module):
    """Encoder-decoder; takes padded source and target ids and gives log-probabilities."""

    def __init__(self, src_vocab=500, tgt_vocab=500, d_model=64, h=4, d_ff=128, n_layers=2,
                 max_len=128, pad=0, dropout=0.1):
        super().__init__()
        self.pad = pad
        self.d_model = d_model
        self.src_embed = nn.Embedding(src_vocab, d_model, padding_idx=pad)
        self.tgt_embed = nn.Embedding(tgt_vocab, d_model, padding_idx=pad)
        self.pos = nn.Parameter(torch.randn(1, max_len, d_model) * 0.02)
        self.encoder = stack(partial(EncoderLayer, d_model, h, d_ff, dropout), n_layers)
        self.decoder = stack(partial(DecoderLayer, d_model, h, d_ff, dropout), n_layers)
        self.enc_norm = nn.LayerNorm(d_model)
        self.dec_norm = nn.LayerNorm(d_model)
        self.generator = nn.Linear(d_model, tgt_vocab)

    def make_src_mask(self, src):
        return (src != self.pad).unsqueeze(-2)

    def make_tgt_mask(self, tgt):
        size = tgt.size(-1)
        tgt_mask = (tgt != self.pad).unsqueeze(-2)
        subsequent = torch.tril(torch.ones(1, size, size, device=tgt.device)).bool()
        return tgt_mask | subsequent

    def encode(self, src, src_mask):
        x = self.src_embed(src) * math.sqrt(self.d_model) + self.pos[:, : src.size(1)]
        for layer in self.encoder:
            x = layer(x, src_mask)
        return self.enc_norm(x)

    def decode(self, memory, src_mask, tgt, tgt_mask):
        x = self.tgt_embed(tgt) * math.sqrt(self.d_model) + self.pos[:, : tgt.size(1)]
        for layer in self.decoder:
            x = layer(x, memory, src_mask, tgt_mask)
        return self.dec_norm(x)

    def forward(self, src, tgt):
        src_mask, tgt_mask = self.make_src_mask(src), self.make_tgt_mask(tgt)
        out = self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask)
        return torch.log_softmax(self.generator(out), dim=-1)
