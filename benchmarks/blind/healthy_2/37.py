import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads, dim_head, dropout):
        super().__init__()
        inner = heads * dim_head
        self.heads, self.dim_head, self.p = heads, dim_head, dropout
        self.to_qkv = nn.Linear(dim, 3 * inner, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x):
        *lead, n, _ = x.shape
        q, k, v = (
            t.reshape(*lead, n, self.heads, self.dim_head).transpose(-3, -2)
            for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)
        return self.to_out(out.transpose(-3, -2).flatten(-2))


class GEGLUFeedForward(nn.Module):
    def __init__(self, dim, dropout, mult=4):
        super().__init__()
        self.inp = nn.Linear(dim, 2 * mult * dim)
        self.out = nn.Linear(mult * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        a, g = self.inp(x).chunk(2, dim=-1)
        return self.out(self.dropout(a * F.gelu(g)))


class Residual(nn.Module):
    """x + f(norm(x))"""

    def __init__(self, dim, fn):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x):
        return x + self.fn(self.norm(x))


class TabularTransformer(nn.Module):
    """Contextual embeddings of all columns, with missing values.

    Args of forward:
        x_cat:     (B, len(categories)) long codes
        x_num:     (B, num_continuous) floats; anything (also NaN) where missing
        missing:   (B, num_continuous) bool, True where ``x_num`` has no value
    Returns logits (B, num_classes).

    Every numerical column has its own small MLP and its own learned vector that stands in for a
    missing value, so no attention mask is needed.
    """

    def __init__(self, categories=(5, 9, 3), num_continuous=6, num_classes=2, dim=32, depth=3,
                 heads=4, dim_head=16, attn_dropout=0.1, ff_dropout=0.1):
        super().__init__()
        self.num_continuous = num_continuous
        offsets = [0]
        for c in categories[:-1]:
            offsets.append(offsets[-1] + c)
        self.register_buffer("offsets", torch.tensor(offsets))
        self.cat_embed = nn.Embedding(sum(categories), dim)
        self.w1 = nn.Parameter(torch.randn(num_continuous, dim))
        self.b1 = nn.Parameter(torch.zeros(num_continuous, dim))
        self.w2 = nn.Parameter(torch.randn(num_continuous, dim, dim) / math.sqrt(dim))
        self.b2 = nn.Parameter(torch.zeros(num_continuous, dim))
        self.missing_embed = nn.Parameter(torch.randn(num_continuous, dim))
        self.column_embed = nn.Parameter(torch.randn(1 + len(categories) + num_continuous, dim) * 0.02)
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.blocks = nn.Sequential(*[
            nn.Sequential(
                Residual(dim, Attention(dim, heads, dim_head, attn_dropout)),
                Residual(dim, GEGLUFeedForward(dim, ff_dropout)),
            ) for _ in range(depth)
        ])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def embed_numbers(self, x, missing):
        # clear the holes first: 0 * NaN would still be NaN in the backward pass
        x = x.masked_fill(missing, 0.0)
        h = torch.relu(x.unsqueeze(-1) * self.w1 + self.b1)
        h = torch.einsum("bcd,cde->bce", h, self.w2) + self.b2
        return torch.where(missing.unsqueeze(-1), self.missing_embed, h)

    def forward(self, x_cat, x_num, missing):
        cls = self.cls.expand(x_cat.size(0), -1, -1)
        tokens = torch.cat([cls, self.cat_embed(x_cat + self.offsets), self.embed_numbers(x_num, missing)], dim=1)
        h = self.blocks(tokens + self.column_embed)
        return self.head(self.norm(h[:, 0]))
