import torch
import torch.nn as nn


class SensorEncoderBlock(nn.Module):
    """Pre-norm encoder block for multivariate sensor windows.

    Input and output: (batch, time, d_model). Each window is encoded on its own.
    """

    def __init__(self, d_model=64, num_heads=4, ff_mult=4, dropout=0.1):
        super().__init__()
        self.norm_attn = nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, num_heads, dropout=dropout)
        self.norm_ff = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, ff_mult * d_model),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(ff_mult * d_model, d_model),
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        h = self.norm_attn(x)
        h, _ = self.attn(h, h, h, need_weights=False)
        x = x + self.drop(h)
        return x + self.drop(self.ff(self.norm_ff(x)))
