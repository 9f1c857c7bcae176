import torch
import torch.nn as nn


class EncoderBlock(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, n_heads, dropout=dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.norm1(x)
        attn_out, _ = self.self_attn(h, h, h, need_weights=False)
        x = x + self.dropout(attn_out)
        x = x + self.dropout(self.ff(self.norm2(x)))
        return x


class SensorTransformer(nn.Module):
    """Forecasts the next ``horizon`` values from a window of multivariate readings.

    x: (batch, window, n_features)  ->  (batch, horizon, n_features)
    """

    def __init__(self, n_features=6, window=48, horizon=4, d_model=64, n_heads=4, n_layers=2, dropout=0.1):
        super().__init__()
        self.horizon = horizon
        self.n_features = n_features
        self.embed = nn.Linear(n_features, d_model)
        self.pos = nn.Parameter(torch.randn(1, window, d_model) * 0.02)
        self.blocks = nn.ModuleList(
            [EncoderBlock(d_model, n_heads, 4 * d_model, dropout) for _ in range(n_layers)]
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, horizon * n_features)

    def forward(self, x):
        h = self.embed(x) + self.pos[:, : x.size(1)]
        for block in self.blocks:
            h = block(h)
        last = self.norm(h[:, -1])
        return self.head(last).view(-1, self.horizon, self.n_features)
