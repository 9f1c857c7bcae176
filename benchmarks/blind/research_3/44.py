import torch
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim, dropout=0.):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, hidden_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)


class AxialAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attn = (q @ k.transpose(-1, -2) * self.scale).softmax(dim=-1)
        out = (attn @ v).transpose(1, 2).reshape(b, n, d)
        return self.to_out(out)


class AxialTransformerBlock(nn.Module):
    """Pre-norm block: attention along the rows, along the columns, then the MLP.
    x: [B, H, W, C]"""

    def __init__(self, dim=32, heads=4, mlp_ratio=4, dropout=0.):
        super().__init__()
        self.norm_row = nn.LayerNorm(dim)
        self.norm_col = nn.LayerNorm(dim)
        self.norm_ff = nn.LayerNorm(dim)
        self.row_attn = AxialAttention(dim, heads)
        self.col_attn = AxialAttention(dim, heads)
        self.ff = FeedForward(dim, dim * mlp_ratio, dropout)

    def attend_rows(self, x):
        B, H, W, C = x.shape
        return self.row_attn(x.reshape(B * H, W, C)).view(B, H, W, C)

    def attend_cols(self, x):
        B, H, W, C = x.shape
        x = x.transpose(1, 2).reshape(B * W, H, C)
        return self.col_attn(x).view(B, W, H, C).transpose(1, 2)

    def forward(self, x):
        x = self.norm_row(x)
        x = x + self.attend_rows(x)

        x = self.norm_col(x)
        x = x + self.attend_cols(x)

        x = self.norm_ff(x)
        x = x + self.ff(x)
        return x
