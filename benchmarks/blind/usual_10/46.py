import torch
import torch.nn as nn
import torch.nn.functional as F


class RotaryAttention(nn.Module):
    """Causal attention with rotary positions for long contexts.

    We train with ``model.to(torch.bfloat16)`` and sequences of 8k tokens.

    Args:
        dim: model width
        num_heads: number of heads
        theta: base of the rotary frequencies
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, theta: float = 500000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.theta = theta
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def rotary_table(self, x: torch.Tensor, seq_len: int):
        steps = torch.arange(0, self.head_dim, 2, device=x.device, dtype=x.dtype)
        inv_freq = 1.0 / (self.theta ** (steps / self.head_dim))
        positions = torch.arange(seq_len, device=x.device, dtype=x.dtype)
        angles = torch.outer(positions, inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    @staticmethod
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-b, a], dim=-1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, seq_len, dim = x.shape
        qkv = self.wqkv(x).view(bsz, seq_len, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        cos, sin = self.rotary_table(x, seq_len)
        q = self.rotate(q, cos, sin)
        k = self.rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(bsz, seq_len, dim))
