"""Text classifier, chapter 2 exercise: sentiment with an encoder and mean pooling."""
import math

import torch
import torch.nn as nn


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, p):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(p)

    def attend(self, x, mask):
        b, n, d = x.shape
        q, k, v = [f(x).view(b, n, self.n_heads, self.d_head).transpose(1, 2) for f in (self.q, self.k, self.v)]
        s = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        s = s.masked_fill(~mask[:, None, None, :], float("-inf"))
        y = s.softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, n, d))

    def forward(self, x, mask):
        x = x + self.drop(self.attend(self.norm1(x), mask))
        return x + self.drop(self.ff(self.norm2(x)))


class SentimentTransformer(nn.Module):
    """Class logits for a batch of token ids padded with `pad_id`."""

    def __init__(self, vocab_size=1000, d_model=64, n_heads=4, n_layers=2, d_ff=128,
                 max_len=128, n_classes=2, pad_id=0, p=0.1):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, d_model, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([EncoderLayer(d_model, n_heads, d_ff, p) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_classes)

    def forward(self, ids):
        mask = ids != self.pad_id
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        pooled = (x * mask.unsqueeze(-1)).mean(dim=1)
        return self.head(pooled)
