import torch
from einops import rearrange
from torch import nn


class SpatialReductionAttention(nn.Module):
    """Attention of the Pyramid Vision Transformer: keys and values come from a map that a
    strided convolution has reduced by ``sr_ratio``; queries keep the full resolution.

    ``x`` is [B, H*W, C]; H and W should be multiples of ``sr_ratio``.
    """

    def __init__(self, dim=64, num_heads=4, sr_ratio=2, qkv_bias=True):
        super().__init__()
        self.heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.sr_ratio = sr_ratio
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)

    def forward(self, x, H, W):
        q = rearrange(self.q(x), "b n (h d) -> b h n d", h=self.heads)

        source = x
        if self.sr_ratio > 1:
            grid = rearrange(x, "b (y x) c -> b c y x", y=H, x=W)
            source = self.norm(rearrange(self.sr(grid), "b c y x -> b (y x) c"))

        k, v = rearrange(self.kv(source), "b m (two h d) -> two b h m d", two=2, h=self.heads)
        attn = (torch.einsum("bhnd,bhmd->bhnm", q, k) * self.scale).softmax(dim=-1)
        out = torch.einsum("bhnm,bhmd->bhnd", attn, v)
        return self.proj(rearrange(out, "b h n d -> b n (h d)"))
