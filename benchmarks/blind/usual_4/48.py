import torch
import torch.nn as nn
import torch.nn.functional as F


def multi_query_attention(x, w_q, w_k, w_v, w_o, num_heads, b_o=None):
    """Causal multi-query attention as a pure function.

    x:        (batch, length, dim)
    w_q, w_o: (dim, dim), w_k, w_v: (dim // num_heads, dim), all in the layout of ``F.linear``.
    One key head and one value head serve all query heads.
    """
    b, n, dim = x.shape
    head_dim = dim // num_heads

    q = F.linear(x, w_q).view(b, n, num_heads, head_dim).transpose(1, 2)
    k = F.linear(x, w_k).unsqueeze(1)
    v = F.linear(x, w_v).unsqueeze(1)

    scores = torch.matmul(q, k.transpose(-1, -2)) / head_dim ** 0.5
    allowed = torch.tril(torch.ones(n, n, dtype=torch.bool, device=x.device), diagonal=1)
    scores = scores.masked_fill(~allowed, float("-inf"))
    probs = F.softmax(scores, dim=-1)

    ctx = torch.matmul(probs, v).transpose(1, 2).reshape(b, n, dim)
    return F.linear(ctx, w_o, b_o)


class MultiQueryAttention(nn.Module):
    def __init__(self, dim=64, num_heads=8):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.w_q = nn.Parameter(torch.empty(dim, dim))
        self.w_k = nn.Parameter(torch.empty(head_dim, dim))
        self.w_v = nn.Parameter(torch.empty(head_dim, dim))
        self.w_o = nn.Parameter(torch.empty(dim, dim))
        self.b_o = nn.Parameter(torch.zeros(dim))
        for w in (self.w_q, self.w_k, self.w_v, self.w_o):
            nn.init.xavier_uniform_(w)

    def forward(self, x):
        return multi_query_attention(
            x, self.w_q, self.w_k, self.w_v, self.w_o, self.num_heads, self.b_o
        )
