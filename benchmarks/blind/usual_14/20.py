import math

import torch
import torch.nn as nn


class MHA(nn.Module):
    def __init__(self, d, h, p):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.p = nn.Dropout(p)

    def forward(self, x, ctx, mask):
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.h, -1).transpose(1, 2)
        k = self.k(ctx).view(b, ctx.size(1), self.h, -1).transpose(1, 2)
        v = self.v(ctx).view(b, ctx.size(1), self.h, -1).transpose(1, 2)
        a = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        a = a.masked_fill(~mask, -1e9).softmax(-1)
        return self.o((self.p(a) @ v).transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, d, h, ff, p, cross):
        super().__init__()
        self.sa = MHA(d, h, p)
        self.n1 = nn.LayerNorm(d)
        self.ca = MHA(d, h, p) if cross else None
        self.n2 = nn.LayerNorm(d) if cross else None
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.ReLU(), nn.Linear(ff, d))
        self.n3 = nn.LayerNorm(d)
        self.p = nn.Dropout(p)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.n1(x + self.p(self.sa(x, x, mask)))
        if self.ca is not None:
            x = self.n2(x + self.p(self.ca(x, memory, memory_mask)))
        return self.n3(x + self.p(self.ff(x)))


class Transformer(nn.Module):
    """The 2017 model: post-norm layers, sinusoidal positions, embeddings times sqrt(d) and tied to the
    output matrix. There is no norm after the last layer because each layer ends in one."""

    def __init__(self, vocab=100, d_model=64, heads=4, layers=2, d_ff=128, dropout=0.1, pad=0, max_len=128):
        super().__init__()
        self.pad, self.d_model = pad, d_model
        self.emb = nn.Embedding(vocab, d_model)
        nn.init.normal_(self.emb.weight, std=d_model**-0.5)
        pos = torch.arange(max_len)[:, None]
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe, persistent=False)
        self.drop = nn.Dropout(dropout)
        self.enc = nn.ModuleList(Layer(d_model, heads, d_ff, dropout, False) for _ in range(layers))
        self.dec = nn.ModuleList(Layer(d_model, heads, d_ff, dropout, True) for _ in range(layers))

    def embed(self, ids):
        return self.drop(self.emb(ids) * math.sqrt(self.d_model) + self.pe[: ids.size(1)])

    def forward(self, src, tgt):
        src_mask = (src != self.pad)[:, None, None, :]
        n = tgt.size(1)
        causal = torch.ones(n, n, dtype=torch.bool, device=tgt.device).tril()
        tgt_mask = (tgt != self.pad)[:, None, None, :] & causal
        memory = self.embed(src)
        for layer in self.enc:
            memory = layer(memory, src_mask)
        x = self.embed(tgt)
        for layer in self.dec:
            x = layer(x, tgt_mask, memory, src_mask)
        return x @ self.emb.weight.T
