import math

import torch
from torch import nn


class T5LayerNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        # no mean subtraction and no bias in T5
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class T5EncoderLayer(nn.Module):
    """Self-attention half of a T5 encoder layer.

    ``mask`` is additive with shape (batch, 1, 1, keys): 0 for tokens, a large negative number for padding.
    The position bias is computed when it is not given; hand the returned one on to the next layer.
    """

    def __init__(self, d_model=64, num_heads=4, d_kv=24, num_buckets=32, max_distance=128):
        super().__init__()
        self.h, self.d = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.rel = nn.Embedding(num_buckets, num_heads)
        self.norm = T5LayerNorm(d_model)
        # The 1/sqrt(d_kv) of the logits is folded into the initialisation of q.
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)

    def bucket(self, rel_pos):
        n = self.num_buckets // 2
        out = (rel_pos > 0).long() * n
        dist = rel_pos.abs()
        exact = n // 2
        far = exact + (
            torch.log(dist.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (n - exact)
        ).long()
        far = far.clamp(max=n - 1)
        return out + torch.where(dist < exact, dist, far)

    def forward(self, x, mask=None, position_bias=None):
        b, t, _ = x.shape
        y = self.norm(x)
        q = self.q(y).view(b, t, self.h, self.d).transpose(1, 2)
        k = self.k(y).view(b, t, self.h, self.d).transpose(1, 2)
        v = self.v(y).view(b, t, self.h, self.d).transpose(1, 2)
        if position_bias is None:
            pos = torch.arange(t, device=x.device)
            position_bias = self.rel(self.bucket(pos[None, :] - pos[:, None])).permute(2, 0, 1)[None]
            if mask is not None:
                position_bias = position_bias + mask
        logits = q @ k.transpose(-1, -2) + position_bias
        ctx = logits.softmax(-1) @ v
        return x + self.o(ctx.transpose(1, 2).reshape(b, t, -1)), position_bias
