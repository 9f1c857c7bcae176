import torch
import torch.nn.functional as F
from torch import nn


def build_rope_cache(seq_len, head_dim, theta, dtype, device):
    inv_freq = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim))
    positions = torch.arange(seq_len, dtype=dtype, device=device)
    angles = torch.outer(positions, inv_freq.to(dtype))
    return angles.cos(), angles.sin()


def apply_rope(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class BFloat16RotaryAttention(nn.Module):
    """Causal attention for long documents (several thousand tokens). The weights and the matrix products are in
    ``dtype``; the output has the dtype of the input."""

    def __init__(
        self,
        dim: int = 256,
        num_heads: int = 4,
        rope_theta: float = 10000.0,
        dtype: torch.dtype = torch.bfloat16,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rope_theta = rope_theta
        self.dtype = dtype
        self.qkv = nn.Linear(dim, 3 * dim, bias=False, dtype=dtype)
        self.out = nn.Linear(dim, dim, bias=False, dtype=dtype)

    def forward(self, x):
        in_dtype = x.dtype
        x = x.to(self.dtype)
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        cos, sin = build_rope_cache(t, self.head_dim, self.rope_theta, x.dtype, x.device)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(b, t, c))
        return y.to(in_dtype)
