import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, q, k, v, mask):
        bs = q.size(0)
        q = self.w_q(q).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)
        k = self.w_k(k).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)
        v = self.w_v(v).view(bs, -1, self.n_heads, self.d_k).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask == 0, -1e9)
        out = torch.matmul(self.drop(F.softmax(scores, dim=-1)), v)
        return self.w_o(out.transpose(1, 2).contiguous().view(bs, -1, self.n_heads * self.d_k))


class FeedForward(nn.Sequential):
    def __init__(self, d_model, d_ff, dropout):
        super().__init__(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.attn = MultiHeadAttention(d_model, n_heads, dropout)
        self.ff = FeedForward(d_model, d_ff, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.norm1(x + self.drop(self.attn(x, x, x, mask)))
        return self.norm2(x + self.drop(self.ff(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, n_heads, dropout)
        self.cross_attn = MultiHeadAttention(d_model, n_heads, dropout)
        self.ff = FeedForward(d_model, d_ff, dropout)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.drop = nn.Dropout(dropout)

    def forward(self, y, memory, src_mask, tgt_mask):
        y = self.norm1(y + self.drop(self.self_attn(y, y, y, tgt_mask)))
        y = self.norm2(y + self.drop(self.cross_attn(y, memory, memory, src_mask)))
        return self.norm3(y + self.drop(self.ff(y)))


class Seq2SeqTransformer(nn.Module):
    """Encoder-decoder Transformer over token ids, returns logits over the target vocabulary."""

    def __init__(self, src_vocab=100, tgt_vocab=100, d_model=64, n_heads=4, n_layers=3, d_ff=128,
                 dropout=0.1, pad_idx=0, max_len=256):
        super().__init__()
        self.pad_idx = pad_idx
        self.scale = math.sqrt(d_model)
        self.src_embed = nn.Embedding(src_vocab, d_model, padding_idx=pad_idx)
        self.tgt_embed = nn.Embedding(tgt_vocab, d_model, padding_idx=pad_idx)
        self.pos_embed = nn.Embedding(max_len, d_model)
        self.encoder = nn.ModuleList([EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.decoder = nn.ModuleList([DecoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.drop = nn.Dropout(dropout)
        self.generator = nn.Linear(d_model, tgt_vocab)

    def make_src_mask(self, src):
        return (src != self.pad_idx)[:, None, None, :]

    def make_tgt_mask(self, tgt):
        t = tgt.size(1)
        pad = (tgt != self.pad_idx)[:, None, None, :]
        causal = torch.tril(torch.ones(t, t, dtype=torch.bool, device=tgt.device))
        return pad & causal

    def embed(self, table, ids):
        positions = torch.arange(ids.size(1), device=ids.device)
        return self.drop(table(ids) * self.scale + self.pos_embed(positions))

    def encode(self, src, src_mask):
        x = self.embed(self.src_embed, src)
        for layer in self.encoder:
            memory = layer(x, src_mask)
        return memory

    def decode(self, tgt, memory, src_mask, tgt_mask):
        y = self.embed(self.tgt_embed, tgt)
        for layer in self.decoder:
            y = layer(y, memory, src_mask, tgt_mask)
        return y

    def forward(self, src, tgt):
        src_mask, tgt_mask = self.make_src_mask(src), self.make_tgt_mask(tgt)
        memory = self.encode(src, src_mask)
        return self.generator(self.decode(tgt, memory, src_mask, tgt_mask))
