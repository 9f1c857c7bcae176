import torch
import torch.nn as nn


class CrossModalAttention(nn.Module):
    """Text tokens attend to image regions.

    text: (B, L, text_dim), regions: (B, R, region_dim)
    returns the attended features (B, L, text_dim) and the weights (B, heads, L, R)
    """

    def __init__(self, text_dim=64, region_dim=96, inner_dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        assert inner_dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = inner_dim // num_heads
        self.to_q = nn.Linear(text_dim, inner_dim)
        self.to_k = nn.Linear(region_dim, inner_dim)
        self.to_v = nn.Linear(region_dim, inner_dim)
        self.to_out = nn.Linear(inner_dim, text_dim)
        self.norm_text = nn.LayerNorm(text_dim)
        self.norm_region = nn.LayerNorm(region_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, text, regions):
        residual = text
        text = self.norm_text(text)
        regions = self.norm_region(regions)
        q = self.to_q(text).unflatten(-1, (self.num_heads, self.head_dim))
        k = self.to_k(regions).unflatten(-1, (self.num_heads, self.head_dim))
        v = self.to_v(regions).unflatten(-1, (self.num_heads, self.head_dim))

        logits = torch.einsum("blhd,brhd->bhlr", q, k) * self.head_dim ** -0.5
        weights = torch.softmax(logits, dim=2)
        out = torch.einsum("bhlr,brhd->blhd", self.dropout(weights), v)
        return residual + self.to_out(out.flatten(2)), weights
