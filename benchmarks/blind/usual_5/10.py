import torch
from torch import nn
import torch.nn.functional as F


class CosineCausalAttention(nn.Module):
    """
    Causal self-attention on the cosine similarity of queries and keys ("Query-Key
    Normalization for Transformers"). Each query and key vector is brought to unit
    length per head; a learned gain `g` takes the place of 1/sqrt(d).
    """

    def __init__(self, dim=128, num_heads=4, init_gain=10.0, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.g = nn.Parameter(torch.full((num_heads, 1, 1), init_gain))
        self.out = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

        q = F.normalize(q, p=2.0)
        k = F.normalize(k, p=2.0)

        sim = self.g * (q @ k.transpose(-2, -1))
        causal = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(causal, float('-inf'))
        attn = self.attn_drop(sim.softmax(dim=-1))

        y = (attn @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.out(y)
