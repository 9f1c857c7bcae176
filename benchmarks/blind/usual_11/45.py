import torch
from torch import nn


class StrictWindowAttention(nn.Module):
    """
    Attention over the strict past.

    Token i attends to tokens i - window ... i - 1 and never to itself: the layer predicts token i from its
    left neighbours, its own content must not leak in through keys and values. A learned null key/value is
    always visible, so that the first token has something to attend to.
    """

    def __init__(self, dim=64, num_heads=4, window=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.query_pos = nn.Parameter(torch.randn(dim) * 0.02)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.query = nn.Linear(dim, dim, bias=False)
        self.null_k = nn.Parameter(torch.randn(num_heads, self.head_dim) * 0.02)
        self.null_v = nn.Parameter(torch.zeros(num_heads, self.head_dim))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, dim = x.shape
        # the query of token i is made from token i - 1, shifted in from the left
        shifted = torch.cat([self.query_pos.expand(b, 1, dim), x[:, :-1]], dim=1)
        q = self.query(shifted).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.key(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.value(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        q = q * self.head_dim ** -0.5

        distance = torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)[None, :]
        visible = (distance >= 1) & (distance <= self.window)
        scores = (q @ k.transpose(-1, -2)).masked_fill(~visible, float("-inf"))
        null_scores = torch.einsum("bhid,hd->bhi", q, self.null_k).unsqueeze(-1)

        weights = torch.cat([null_scores, scores], dim=-1).softmax(dim=-1)
        out = weights[..., 1:] @ v + weights[..., :1] * self.null_v[:, None, :]
        return self.out(out.transpose(1, 2).reshape(b, n, dim))
