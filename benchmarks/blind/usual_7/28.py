import torch
import torch.nn as nn
import torch.nn.functional as F


class StrictlyCausalAttention(nn.Module):
    """
    Position t reads strictly earlier positions only (0 .. t-1), never itself: its own value is what the
    density model downstream has to predict. A learned null key/value in column 0 stays visible to everyone,
    so that position 0 has something to attend to.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        hd = dim // num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.null_k = nn.Parameter(torch.randn(num_heads, 1, hd) * 0.02)
        self.null_v = nn.Parameter(torch.zeros(num_heads, 1, hd))
        # without it the query would carry the token itself past the mask
        self.start = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x):
        B, T, C = x.shape
        shifted = torch.cat([self.start.expand(B, -1, -1), x[:, :-1]], dim=1)
        q = self.q(shifted).view(B, T, self.num_heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(B, T, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        k = torch.cat([self.null_k.expand(B, -1, -1, -1), k], dim=2)
        v = torch.cat([self.null_v.expand(B, -1, -1, -1), v], dim=2)

        # column c > 0 is position c - 1; row t may see columns 0 .. t
        visible = torch.ones(T, T + 1, dtype=torch.bool, device=x.device).tril()
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, dropout_p=self.dropout if self.training else 0.0
        )
        return self.proj(y.transpose(1, 2).reshape(B, T, C))
