"""Topic classifier on top of a small pre-norm transformer encoder."""
import math

import torch
import torch.nn as nn


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, dim, num_heads, dropout=0.1):
        super().__init__()
        assert dim % num_heads == 0, "dim must be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, pad_mask):
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        # the [CLS] column is never padding, so no row is completely masked
        scores = scores.masked_fill(pad_mask[:, None, None, :], float("-inf"))
        attn = self.drop(scores.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(b, t, c)
        return self.proj(out)


class Block(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = MultiHeadSelfAttention(dim, num_heads, dropout)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x, pad_mask):
        x = x + self.drop(self.attn(self.ln1(x), pad_mask))
        x = x + self.drop(self.mlp(self.ln2(x)))
        return x


class TopicClassifier(nn.Module):
    """Classify padded batches of token ids.

    Args:
        vocab_size: number of token ids, including the padding id.
        num_classes: number of topics.
        dim, num_heads, num_layers: encoder size.
        max_len: longest accepted sequence (without the internal [CLS] slot).
        pad_id: id used to fill up short sequences (on either side).
    """

    def __init__(self, vocab_size=20000, num_classes=4, dim=128, num_heads=4,
                 num_layers=2, max_len=256, dropout=0.1, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.max_len = max_len
        self.tok = nn.Embedding(vocab_size, dim, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len + 1, dim)
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, input_ids):
        b, t = input_ids.shape
        if t > self.max_len:
            raise ValueError(f"sequence of length {t} exceeds max_len={self.max_len}")
        pad_mask = input_ids.eq(self.pad_id)
        # position 0 is the CLS slot; real tokens are numbered 1, 2, ... whatever the padding side
        positions = (~pad_mask).long().cumsum(dim=1).masked_fill(pad_mask, 0)
        x = self.tok(input_ids) + self.pos(positions)
        cls = self.cls.expand(b, -1, -1) + self.pos.weight[0]
        x = self.drop(torch.cat([cls, x], dim=1))
        pad_mask = torch.cat([pad_mask.new_zeros(b, 1), pad_mask], dim=1)
        for block in self.blocks:
            x = block(x, pad_mask)
        return self.head(self.norm(x[:, 0]))
