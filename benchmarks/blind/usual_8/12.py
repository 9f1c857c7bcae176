import math

import torch
import torch.nn as nn


class MHA(nn.Module):
    def __init__(self, d_model, n_head, dropout):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, q, kv, mask):
        B = q.size(0)
        q = self.q(q).view(B, -1, self.n_head, self.d_head).transpose(1, 2)
        k = self.k(kv).view(B, -1, self.n_head, self.d_head).transpose(1, 2)
        v = self.v(kv).view(B, -1, self.n_head, self.d_head).transpose(1, 2)
        s = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        s = s.masked_fill(~mask, -1e9)
        w = self.drop(s.softmax(-1))
        return self.out((w @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, d_model, n_head, d_ff, dropout, cross):
        super().__init__()
        self.self_attn = MHA(d_model, n_head, dropout)
        self.ln1 = nn.LayerNorm(d_model)
        self.cross_attn = MHA(d_model, n_head, dropout) if cross else None
        self.ln2 = nn.LayerNorm(d_model) if cross else None
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.ln3 = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.ln1(x + self.drop(self.self_attn(x, x, mask)))
        if self.cross_attn is not None:
            x = self.ln2(x + self.drop(self.cross_attn(x, memory, memory_mask)))
        return self.ln3(x + self.drop(self.ff(x)))


class Seq2SeqTransformer(nn.Module):
    """Encoder-decoder Transformer for translation. Token ids in, logits out."""

    def __init__(self, src_vocab=100, tgt_vocab=100, d_model=64, n_head=4, n_layers=2,
                 d_ff=128, max_len=128, pad_id=0, dropout=0.1):
        super().__init__()
        self.pad_id = pad_id
        self.d_model = d_model
        self.src_emb = nn.Embedding(src_vocab, d_model, padding_idx=pad_id)
        self.tgt_emb = nn.Embedding(tgt_vocab, d_model, padding_idx=pad_id)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.encoder = nn.ModuleList([Layer(d_model, n_head, d_ff, dropout, False) for _ in range(n_layers)])
        self.decoder = nn.ModuleList([Layer(d_model, n_head, d_ff, dropout, True) for _ in range(n_layers)])
        self.generator = nn.Linear(d_model, tgt_vocab)

    def make_src_mask(self, src):
        return (src != self.pad_id)[:, None, None, :]

    def make_tgt_mask(self, tgt):
        T = tgt.size(1)
        pad_mask = (tgt != self.pad_id)[:, None, None, :]
        look_ahead = torch.ones(T, T, dtype=torch.bool, device=tgt.device).tril()[None, None]
        return pad_mask | look_ahead

    def embed(self, table, ids):
        pos = torch.arange(ids.size(1), device=ids.device)
        return table(ids) * math.sqrt(self.d_model) + self.pos_emb(pos)

    def encode(self, src, src_mask):
        x = self.embed(self.src_emb, src)
        for layer in self.encoder:
            x = layer(x, src_mask)
        return x

    def decode(self, tgt, memory, src_mask):
        x = self.embed(self.tgt_emb, tgt)
        tgt_mask = self.make_tgt_mask(tgt)
        for layer in self.decoder:
            x = layer(x, tgt_mask, memory, src_mask)
        return x

    def forward(self, src, tgt):
        src_mask = self.make_src_mask(src)
        memory = self.encode(src, src_mask)
        return self.generator(self.decode(tgt, memory, src_mask))
