import torch
from torch import nn


def apply_rotary(x, pos, base=10000.0):
    d = x.shape[-1]
    inv = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    ang = pos * inv
    cos, sin = ang.cos(), ang.sin()
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return torch.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1).flatten(-2)


class RollingCacheAttention(nn.Module):
    """Sliding-window attention for token-by-token decoding, with a ring buffer of ``window`` slots.

    Token number p goes to slot p % window and pushes out token p - window. The slots are therefore
    not in the order of the text, which does not matter: keys are stored after the rotation for their
    absolute position, and attention does not depend on the order of the keys. No causal mask is
    needed either, since the buffer never holds a token from the future.

    Call ``reset(batch)`` before every new batch of sequences.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.register_buffer("k_ring", torch.empty(0), persistent=False)
        self.register_buffer("v_ring", torch.empty(0), persistent=False)
        self.pos = 0

    def reset(self, batch: int) -> None:
        w = self.qkv.weight
        self.k_ring = w.new_zeros(batch, self.num_heads, self.window, self.head_dim)
        self.v_ring = torch.zeros_like(self.k_ring)
        self.pos = 0

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [B, 1, dim], the next token of every sequence."""
        b = x.shape[0]
        if self.k_ring.numel() == 0:
            self.reset(b)
        q, k, v = self.qkv(x).view(b, 3, self.num_heads, self.head_dim).unbind(1)
        q = apply_rotary(q, self.pos)
        k = apply_rotary(k, self.pos)

        slot = self.pos % self.window
        self.k_ring[:, :, slot] = k
        self.v_ring[:, :, slot] = v
        self.pos += 1
        filled = min(self.pos, self.window)

        att = torch.einsum("bhd,bhwd->bhw", q, self.k_ring[:, :, :filled]) * self.head_dim ** -0.5
        out = torch.einsum("bhw,bhwd->bhd", att.softmax(-1), self.v_ring[:, :, :filled])
        return self.proj(out.reshape(b, 1, -1))
