import math

import torch
from torch import nn


class PostNormLayer(nn.Module):
    def __init__(self, dim, heads, ff, dropout):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(dim, ff), nn.Linear(ff, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, ignore):
        a, _ = self.attn(x, x, x, key_padding_mask=ignore, need_weights=False)
        x = self.norm1(x + self.drop(a))
        return self.norm2(x + self.drop(self.fc2(self.drop(torch.relu(self.fc1(x))))))


class SentenceEncoder(nn.Module):
    """Original (post-norm) transformer encoder that returns one unit vector per sentence.

    ``forward(ids)`` takes (batch, length) ids. Inside, masks follow the convention of
    nn.MultiheadAttention: True means "ignore". The first token is never ignored, so that an empty
    sentence still has a key and no row of the softmax is empty. There is no norm after the last
    layer, post-norm layers end with one.
    """

    def __init__(self, vocab=1000, dim=64, heads=4, layers=2, ff=128, max_len=128, pad=0, dropout=0.1):
        super().__init__()
        self.pad, self.dim = pad, dim
        self.embed = nn.Embedding(vocab, dim, padding_idx=pad)
        pos = torch.arange(max_len).unsqueeze(1)
        freq = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        table = torch.stack([torch.sin(pos * freq), torch.cos(pos * freq)], dim=-1).flatten(1)
        self.register_buffer("pos_table", table)
        self.layers = nn.ModuleList([PostNormLayer(dim, heads, ff, dropout) for _ in range(layers)])
        self.drop = nn.Dropout(dropout)

    def forward(self, ids):
        ignore = ids.eq(self.pad)
        ignore = ignore & (torch.arange(ids.shape[1], device=ids.device) > 0)
        x = self.drop(self.embed(ids) * math.sqrt(self.dim) + self.pos_table[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x, ignore)
        total = x.masked_fill(ignore.unsqueeze(-1), 0.0).sum(dim=1)
        mean = total / (~ignore).sum(dim=1, keepdim=True)
        return nn.functional.normalize(mean, dim=-1)
