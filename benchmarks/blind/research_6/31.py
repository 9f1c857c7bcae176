import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_every_two(x):
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class RotarySelfAttention(nn.Module):
    """Causal attention with partial rotary embeddings: the first ``rotary_dim`` channels
    of every head are rotated, the others carry no position."""

    def __init__(self, dim=64, num_heads=4, rotary_dim=8, max_seq_len=512, theta=10000):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rotary_dim = rotary_dim
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

        inv_freq = 1.0 / (theta ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim))
        t = torch.arange(max_seq_len).float()
        freqs = torch.einsum("i,j->ij", t, inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos", emb.cos(), persistent=False)
        self.register_buffer("sin", emb.sin(), persistent=False)

    def apply_rotary(self, x, offset=0):
        cos = self.cos[offset : offset + x.size(2)].to(x.dtype)
        sin = self.sin[offset : offset + x.size(2)].to(x.dtype)
        rot, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        rot = rot * cos + rotate_every_two(rot) * sin
        return torch.cat((rot, rest), dim=-1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        q, k = self.apply_rotary(q), self.apply_rotary(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))
