import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.n_heads, self.d_head).transpose(1, 2)
        k = self.k(x).view(b, n, self.n_heads, self.d_head).transpose(1, 2)
        v = self.v(x).view(b, n, self.n_heads, self.d_head).transpose(1, 2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.d_head)
        scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        probs = self.dropout(F.softmax(scores, dim=-1))
        out = (probs @ v).transpose(1, 2).reshape(b, n, d)
        return self.o(out)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.attn = SelfAttention(d_model, n_heads, dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.norm1(x + self.dropout(self.attn(x, mask)))
        x = self.norm2(x + self.dropout(self.ff(x)))
        return x


class SentimentClassifier(nn.Module):
    """Transformer encoder for review classification. Reviews in a batch are padded with pad_id."""

    def __init__(self, vocab_size=1000, num_classes=2, d_model=64, n_heads=4, n_layers=2,
                 d_ff=128, max_len=256, dropout=0.1, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.tok_emb = nn.Embedding(vocab_size, d_model, padding_idx=pad_id)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(d_model, num_classes)

    def forward(self, input_ids):
        mask = input_ids != self.pad_id
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.dropout(self.tok_emb(input_ids) + self.pos_emb(positions))
        for layer in self.layers:
            x = layer(x, mask)
        pooled = x.mean(dim=1)
        return self.classifier(self.dropout(pooled))
