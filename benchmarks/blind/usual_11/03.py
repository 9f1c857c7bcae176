import torch
from torch import nn


def streaming_attention(q, k, v, chunk_size):
    """
    Softmax attention that walks over the keys in chunks and never holds the full
    (q_len, k_len) matrix. q, k, v: (batch, heads, length, head_dim), q already scaled.
    """
    b, h, n, d = q.shape
    acc = q.new_zeros(b, h, n, v.shape[-1])
    row_sum = q.new_zeros(b, h, n, 1)
    row_max = q.new_full((b, h, n, 1), float("-inf"))

    for k_chunk, v_chunk in zip(k.split(chunk_size, dim=2), v.split(chunk_size, dim=2)):
        s = torch.einsum("bhid,bhjd->bhij", q, k_chunk)
        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        correction = torch.exp(row_max - new_max)
        row_sum = row_sum + p.sum(dim=-1, keepdim=True)
        acc = acc * correction + torch.einsum("bhij,bhjd->bhid", p, v_chunk)
        row_max = new_max

    return acc / row_sum


class MemoryEfficientAttention(nn.Module):
    """Drop-in replacement for full self-attention with O(n * chunk_size) memory."""

    def __init__(self, dim=64, num_heads=4, chunk_size=8, qkv_bias=True):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.chunk_size = chunk_size
        self.scale = self.head_dim ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.to_qkv(x).view(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = streaming_attention(q * self.scale, k, v, self.chunk_size)
        out = out.transpose(1, 2).reshape(b, n, c)
        return self.to_out(out)
