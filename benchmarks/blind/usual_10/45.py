import math

import torch
import torch.nn as nn


class TextClassifier(nn.Module):
    """Transformer text classifier: embedding, one encoder block, masked mean pooling, linear head.

    Args:
        num_tokens: vocabulary size
        pad_idx: index of the padding token

    Input: token ids of shape (batch, length)
    """

    def __init__(self, num_tokens=1000, dim=64, num_heads=4, num_classes=4, max_len=512, pad_idx=0, dropout=0.1):
        super().__init__()
        self.pad_idx = pad_idx
        self.dim = dim
        self.embedding = nn.Embedding(num_tokens, dim, padding_idx=pad_idx)

        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        pe = torch.zeros(max_len, dim)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

        self.attention = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(dim, num_classes)

    def forward(self, ids):
        mask = ids != self.pad_idx
        x = self.embedding(ids) * math.sqrt(self.dim) + self.pe[: ids.size(1)]
        x = self.dropout(x)

        attended, _ = self.attention(x, x, x, key_padding_mask=mask)
        x = self.norm1(x + self.dropout(attended))
        x = self.norm2(x + self.dropout(self.ff(x)))

        weights = mask.unsqueeze(-1).to(x.dtype)
        pooled = (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
        return self.classifier(pooled)
