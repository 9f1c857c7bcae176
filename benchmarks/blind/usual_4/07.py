import torch
import torch.nn as nn


class LMDecoderLayer(nn.Module):
    """Pre-norm decoder-only layer for language modelling, sequence-first layout (T, B, C)."""

    def __init__(self, d_model=64, nhead=4, dim_feedforward=256, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.act = nn.GELU()

    @staticmethod
    def causal_mask(size, like):
        return torch.tril(torch.ones(size, size, device=like.device, dtype=like.dtype))

    def forward(self, x):
        mask = self.causal_mask(x.size(0), x)
        h = self.norm1(x)
        h, _ = self.self_attn(h, h, h, attn_mask=mask, need_weights=False)
        x = x + self.dropout(h)
        h = self.norm2(x)
        h = self.linear2(self.dropout(self.act(self.linear1(h))))
        return x + self.dropout(h)
