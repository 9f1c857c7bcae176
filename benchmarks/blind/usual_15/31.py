"""Translation model from chapter 5, complete."""
import math

import torch
import torch.nn as nn


class MHA(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        nb = query.size(0)
        q, k, v = [
            lin(x).view(nb, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        x = torch.matmul(scores.softmax(dim=-1), v)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(nb, -1, self.h * self.d_k))


class EncLayer(nn.Module):
    def __init__(self, d, h, ff):
        super().__init__()
        self.attn = MHA(d, h)
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.ReLU(), nn.Linear(ff, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, mask):
        y = self.n1(x)
        x = x + self.attn(y, y, y, mask)
        return x + self.ff(self.n2(x))


class DecLayer(nn.Module):
    def __init__(self, d, h, ff):
        super().__init__()
        self.self_attn = MHA(d, h)
        self.src_attn = MHA(d, h)
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.ReLU(), nn.Linear(ff, d))
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, memory, src_mask, tgt_mask):
        y = self.n1(x)
        x = x + self.self_attn(y, y, y, tgt_mask)
        x = x + self.src_attn(self.n2(x), memory, memory)
        return x + self.ff(self.n3(x))


class Translator(nn.Module):
    """src and tgt are token ids, (batch, length), padded with pad_id on the right."""

    def __init__(self, src_vocab=500, tgt_vocab=500, d_model=64, h=4, ff=128, n=2, max_len=100, pad_id=0):
        super().__init__()
        self.pad_id, self.d_model = pad_id, d_model
        self.src_emb = nn.Embedding(src_vocab, d_model)
        self.tgt_emb = nn.Embedding(tgt_vocab, d_model)
        self.pos = nn.Embedding(max_len, d_model)
        self.encoder = nn.ModuleList([EncLayer(d_model, h, ff) for _ in range(n)])
        self.decoder = nn.ModuleList([DecLayer(d_model, h, ff) for _ in range(n)])
        self.enc_norm, self.dec_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.generator = nn.Linear(d_model, tgt_vocab)

    def embed(self, emb, ids):
        return emb(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))

    def forward(self, src, tgt):
        src_mask = (src != self.pad_id).unsqueeze(-2)
        t = tgt.size(1)
        causal = torch.ones(1, t, t, dtype=torch.bool, device=tgt.device).tril()
        tgt_mask = (tgt != self.pad_id).unsqueeze(-2) & causal

        memory = self.embed(self.src_emb, src)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        memory = self.enc_norm(memory)

        x = self.embed(self.tgt_emb, tgt)
        for layer in self.decoder:
            x = layer(x, memory, src_mask, tgt_mask)
        return self.generator(self.dec_norm(x))
