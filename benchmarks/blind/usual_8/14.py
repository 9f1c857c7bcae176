import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadSelfAttention(nn.Module):
    """
    Multi-head self-attention.

    Shapes:
        x    : (batch, tokens, dim)
        mask : (batch, tokens), True for real tokens
    """

    def __init__(self, dim=64, n_heads=4, dropout=0.0):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.scale = self.head_dim ** -0.5
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        b, n, d = x.shape
        h, hd = self.n_heads, self.head_dim

        q = self.query(x).reshape(b, n, h, hd).transpose(1, 2)  # b h n hd
        k = self.key(x).reshape(b, h, hd, n)                    # b h hd n
        v = self.value(x).reshape(b, n, h, hd).transpose(1, 2)  # b h n hd

        scores = torch.matmul(q, k) * self.scale                # b h n n
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = self.dropout(F.softmax(scores, dim=-1))

        ctx = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, d)
        return self.out(ctx)
