import math

import torch
from torch import nn
from torch.nn import functional as F


class QKNormCausalAttention(nn.Module):
    """Causal attention on L2-normalised queries and keys (Henry et al., 2020).

    The logits are cosine similarities times a learned gain g, initialised at log2(L^2 - L)
    for the training length L.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, train_length: int = 128, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.gain = nn.Parameter(torch.tensor(math.log2(train_length**2 - train_length)))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

        q = F.normalize(q, p=2, dim=2)
        k = F.normalize(k, p=2, dim=2)

        att = self.gain * (q @ k.transpose(-2, -1))
        causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        att = att.masked_fill(~causal, float("-inf")).softmax(dim=-1)
        att = F.dropout(att, p=self.dropout, training=self.training)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.proj(y)
