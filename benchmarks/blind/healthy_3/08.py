"""Compact sequence-to-sequence transformer for translation."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHead(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dk = dim // heads
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, memory, mask):
        """mask broadcasts to (batch, heads, query length, memory length), True = may attend."""
        b, lq, d = query.shape
        lk = memory.size(1)
        q = self.wq(query).view(b, lq, self.heads, self.dk).transpose(1, 2)
        k = self.wk(memory).view(b, lk, self.heads, self.dk).transpose(1, 2)
        v = self.wv(memory).view(b, lk, self.heads, self.dk).transpose(1, 2)
        score = q @ k.transpose(-1, -2) / math.sqrt(self.dk)
        score = score.masked_fill(~mask, torch.finfo(score.dtype).min)
        attn = self.dropout(score.softmax(-1))
        return self.wo((attn @ v).transpose(1, 2).reshape(b, lq, d))


def feed_forward(dim, hidden, dropout):
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, dim))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.attn, self.ff = MultiHead(dim, heads, dropout), feed_forward(dim, 4 * dim, dropout)
        self.n1, self.n2, self.drop = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.Dropout(dropout)

    def forward(self, x, mask):
        y = self.n1(x)
        x = x + self.drop(self.attn(y, y, mask))
        return x + self.drop(self.ff(self.n2(x)))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.self_attn, self.cross = MultiHead(dim, heads, dropout), MultiHead(dim, heads, dropout)
        self.ff = feed_forward(dim, 4 * dim, dropout)
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, memory, self_mask, memory_mask):
        y = self.n1(x)
        x = x + self.drop(self.self_attn(y, y, self_mask))
        x = x + self.drop(self.cross(self.n2(x), memory, memory_mask))  # memory is already normalised
        return x + self.drop(self.ff(self.n3(x)))


class TranslationTransformer(nn.Module):
    PAD, BOS, EOS = 0, 1, 2

    def __init__(self, src_vocab=1000, tgt_vocab=1200, dim=128, heads=4, layers=2, max_len=128, dropout=0.1):
        super().__init__()
        self.dim = dim
        self.src_emb = nn.Embedding(src_vocab, dim, padding_idx=self.PAD)
        self.tgt_emb = nn.Embedding(tgt_vocab, dim, padding_idx=self.PAD)
        for emb in (self.src_emb, self.tgt_emb):
            nn.init.normal_(emb.weight, std=dim ** -0.5)
            with torch.no_grad():
                emb.weight[self.PAD].zero_()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        table = torch.zeros(max_len, dim)
        table[:, 0::2] = torch.sin(pos * div)
        table[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", table, persistent=False)
        self.encoder = nn.ModuleList([EncoderLayer(dim, heads, dropout) for _ in range(layers)])
        self.decoder = nn.ModuleList([DecoderLayer(dim, heads, dropout) for _ in range(layers)])
        self.enc_norm, self.dec_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def _embed(self, emb, ids):
        return self.drop(emb(ids) * math.sqrt(self.dim) + self.pe[: ids.size(1)])

    def encode(self, src):
        mask = (src != self.PAD)[:, None, None, :]
        x = self._embed(self.src_emb, src)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.enc_norm(x), mask

    def decode(self, tgt, memory, memory_mask):
        t = tgt.size(1)
        causal = torch.ones(t, t, dtype=torch.bool, device=tgt.device).tril()
        mask = causal & (tgt != self.PAD)[:, None, None, :]
        x = self._embed(self.tgt_emb, tgt)
        for layer in self.decoder:
            x = layer(x, memory, mask, memory_mask)
        return F.linear(self.dec_norm(x), self.tgt_emb.weight)

    def forward(self, src, tgt):
        """src (B, S); tgt (B, T) begins with BOS. Logits (B, T, V): position t predicts token t + 1."""
        return self.decode(tgt, *self.encode(src))

    def loss(self, src, tgt):
        logits = self(src, tgt[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=self.PAD,
                               label_smoothing=0.1)

    @torch.no_grad()
    def greedy(self, src, max_new=40):
        memory, mask = self.encode(src)
        out = src.new_full((src.size(0), 1), self.BOS)
        done = torch.zeros(src.size(0), dtype=torch.bool, device=src.device)
        for _ in range(max_new):
            nxt = self.decode(out, memory, mask)[:, -1].argmax(-1)
            nxt = nxt.masked_fill(done, self.PAD)
            out = torch.cat([out, nxt[:, None]], dim=1)
            done = done | (nxt == self.EOS)
            if done.all():
                break
        return out
