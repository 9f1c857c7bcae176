import torch
import torch.nn as nn


def zero_module(module):
    for p in module.parameters():
        nn.init.zeros_(p)
    return module


class SpatialSelfAttention(nn.Module):
    """Self-attention over the pixels of a feature map, used at the low resolutions of the U-Net."""

    def __init__(self, channels: int = 64, num_heads: int = 4, groups: int = 8, zero_init: bool = False):
        super().__init__()
        assert channels % num_heads == 0
        self.num_heads = num_heads
        self.norm = nn.GroupNorm(groups, channels)
        self.to_qkv = nn.Linear(channels, 3 * channels)
        self.to_out = nn.Linear(channels, channels)
        if zero_init:
            zero_module(self.to_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        residual = x
        tokens = self.norm(x).reshape(b, h * w, c)

        q, k, v = self.to_qkv(tokens).chunk(3, dim=-1)
        q, k, v = (
            t.reshape(b, h * w, self.num_heads, c // self.num_heads).transpose(1, 2)
            for t in (q, k, v)
        )
        attn = torch.softmax(q @ k.transpose(-1, -2) * (c // self.num_heads) ** -0.5, dim=-1)
        out = (attn @ v).transpose(1, 2).reshape(b, h * w, c)
        out = self.to_out(out).transpose(1, 2).reshape(b, c, h, w)
        return residual + out
