import math

import torch
import torch.nn as nn


class MultiHead(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.h = n_head
        self.d_k = d_model // n_head
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        B = q.size(0)
        q, k, v = [
            lin(t).view(B, -1, self.h, self.d_k).transpose(1, 2)
            for lin, t in ((self.q, q), (self.k, k), (self.v, v))
        ]
        score = q @ k.transpose(2, 3) / math.sqrt(self.d_k)
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000.0)
        out = score.softmax(dim=-1) @ v
        return self.o(out.transpose(1, 2).reshape(B, -1, self.h * self.d_k))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_head, d_ff, drop):
        super().__init__()
        self.self_attn = MultiHead(d_model, n_head)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(drop), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(drop)

    def forward(self, x, src_mask):
        x = self.norm1(x + self.drop(self.self_attn(x, x, x, src_mask)))
        return self.norm2(x + self.drop(self.ffn(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, n_head, d_ff, drop):
        super().__init__()
        self.self_attn = MultiHead(d_model, n_head)
        self.cross_attn = MultiHead(d_model, n_head)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(drop), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d_model), nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(drop)

    def forward(self, x, memory, tgt_mask, src_mask):
        x = self.norm1(x + self.drop(self.self_attn(x, x, x, tgt_mask)))
        x = self.norm2(x + self.drop(self.cross_attn(x, memory, memory)))
        return self.norm3(x + self.drop(self.ffn(x)))


class Seq2SeqTransformer(nn.Module):
    def __init__(self, src_vocab=1000, tgt_vocab=1000, d_model=128, n_head=4, n_layers=2, d_ff=256, max_len=128,
                 drop=0.1, pad_idx=0):
        super().__init__()
        self.pad_idx = pad_idx
        self.src_emb = nn.Embedding(src_vocab, d_model, padding_idx=pad_idx)
        self.tgt_emb = nn.Embedding(tgt_vocab, d_model, padding_idx=pad_idx)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.encoder = nn.ModuleList([EncoderLayer(d_model, n_head, d_ff, drop) for _ in range(n_layers)])
        self.decoder = nn.ModuleList([DecoderLayer(d_model, n_head, d_ff, drop) for _ in range(n_layers)])
        self.drop = nn.Dropout(drop)
        self.generator = nn.Linear(d_model, tgt_vocab)

    def make_src_mask(self, src):
        return (src != self.pad_idx).unsqueeze(1).unsqueeze(2)

    def make_tgt_mask(self, tgt):
        pad_mask = (tgt != self.pad_idx).unsqueeze(1).unsqueeze(2)
        n = tgt.size(1)
        return pad_mask & torch.tril(torch.ones(n, n, dtype=torch.bool, device=tgt.device))

    def embed(self, ids, table):
        return self.drop(table(ids) + self.pos_emb(torch.arange(ids.size(1), device=ids.device)))

    def forward(self, src, tgt):
        src_mask, tgt_mask = self.make_src_mask(src), self.make_tgt_mask(tgt)
        memory = self.embed(src, self.src_emb)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        x = self.embed(tgt, self.tgt_emb)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask, src_mask)
        return self.generator(x)
