import torch
import torch.nn as nn


class ColumnAttention(nn.Module):
    """Causal attention in column convention (vectors are columns, as in the lecture notes).

    With X of shape (batch, dim, time):  S = K^T Q  has keys in rows and queries in columns,
    so every *column* is normalised and the mask keeps the upper triangle (key <= query).
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        std = dim ** -0.5
        self.W_q = nn.Parameter(torch.randn(dim, dim) * std)
        self.W_k = nn.Parameter(torch.randn(dim, dim) * std)
        self.W_v = nn.Parameter(torch.randn(dim, dim) * std)
        self.W_o = nn.Parameter(torch.randn(dim, dim) * std)

    def _project(self, W, X):
        b, _, t = X.shape
        return (W @ X).view(b, self.num_heads, self.head_dim, t)

    def forward(self, X):
        """X: (batch, dim, time) -> (batch, dim, time)"""
        b, d, t = X.shape
        Q = self._project(self.W_q, X)
        K = self._project(self.W_k, X)
        V = self._project(self.W_v, X)

        S = K.transpose(-2, -1) @ Q / self.head_dim ** 0.5
        keep = torch.triu(torch.ones(t, t, dtype=torch.bool, device=X.device))
        S = S.masked_fill(~keep, float("-inf"))
        A = torch.softmax(S, dim=-2)

        Y = (V @ A).reshape(b, d, t)
        return self.W_o @ Y
