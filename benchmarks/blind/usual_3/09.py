import math

import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, d_model, heads, dropout):
        super().__init__()
        self.heads = heads
        self.d_head = d_model // heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.fc = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, query, memory, mask):
        b = query.size(0)
        q = self.q(query).view(b, -1, self.heads, self.d_head).transpose(1, 2)
        k = self.k(memory).view(b, -1, self.heads, self.d_head).transpose(1, 2)
        v = self.v(memory).view(b, -1, self.heads, self.d_head).transpose(1, 2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.d_head)
        scores = scores.masked_fill(~mask, -1e9)
        out = self.drop(scores.softmax(dim=-1)) @ v
        return self.fc(out.transpose(1, 2).reshape(b, -1, self.heads * self.d_head))


class FeedForward(nn.Sequential):
    def __init__(self, d_model, d_ff, dropout):
        super().__init__(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, dropout):
        super().__init__()
        self.attn = Attention(d_model, heads, dropout)
        self.ff = FeedForward(d_model, d_ff, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, src_mask):
        x = self.norm1(x + self.drop(self.attn(x, x, src_mask)))
        return self.norm2(x + self.drop(self.ff(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, dropout):
        super().__init__()
        self.self_attn = Attention(d_model, heads, dropout)
        self.cross_attn = Attention(d_model, heads, dropout)
        self.ff = FeedForward(d_model, d_ff, dropout)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.norm1(x + self.drop(self.self_attn(x, x, tgt_mask)))
        x = self.norm2(x + self.drop(self.cross_attn(x, memory, src_mask)))
        return self.norm3(x + self.drop(self.ff(x)))


class Seq2SeqTransformer(nn.Module):
    """Encoder-decoder Transformer for translation, trained with teacher forcing.

    All masks are boolean and True means "may be attended".
    """

    def __init__(self, src_vocab=100, tgt_vocab=100, d_model=64, heads=4, num_layers=2,
                 d_ff=128, max_len=64, pad_idx=0, dropout=0.1):
        super().__init__()
        self.pad_idx = pad_idx
        self.src_emb = nn.Embedding(src_vocab, d_model)
        self.tgt_emb = nn.Embedding(tgt_vocab, d_model)
        self.src_pos = nn.Embedding(max_len, d_model)
        self.tgt_pos = nn.Embedding(max_len, d_model)
        self.encoder = nn.ModuleList([EncoderLayer(d_model, heads, d_ff, dropout) for _ in range(num_layers)])
        self.decoder = nn.ModuleList([DecoderLayer(d_model, heads, d_ff, dropout) for _ in range(num_layers)])
        self.out = nn.Linear(d_model, tgt_vocab)
        self.drop = nn.Dropout(dropout)
        self.scale = math.sqrt(d_model)

    def make_src_mask(self, src):
        return (src != self.pad_idx)[:, None, None, :]

    def make_tgt_mask(self, tgt):
        t = tgt.size(1)
        pad_mask = (tgt != self.pad_idx)[:, None, None, :]
        causal = torch.ones(t, t, device=tgt.device).tril().bool()
        return pad_mask | causal

    def embed(self, ids, tok, pos):
        p = torch.arange(ids.size(1), device=ids.device)
        return self.drop(tok(ids) * self.scale + pos(p))

    def forward(self, src, tgt):
        src_mask, tgt_mask = self.make_src_mask(src), self.make_tgt_mask(tgt)
        memory = self.embed(src, self.src_emb, self.src_pos)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        x = self.embed(tgt, self.tgt_emb, self.tgt_pos)
        for layer in self.decoder:
            x = layer(x, memory, src_mask, tgt_mask)
        return self.out(x)
