import torch
import torch.nn as nn
from einops import rearrange


class SpectrogramWindowAttention(nn.Module):
    """Window attention with relative position bias for spectrogram feature maps.

    The windows are longer in time than in frequency.

    Args:
        dim: number of channels.
        window_size: (frequency bins, frames) of a window.
        num_heads: number of attention heads.

    Input and output: (B, F, T, C), with F and T multiples of the window size.
    """

    def __init__(self, dim=64, window_size=(4, 8), num_heads=4, qkv_bias=True, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.dim = dim
        self.window_size = window_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5

        # one bias per head for each of the 2*Wh-1 * 2*Ww-1 offsets
        self.relative_position_bias_table = nn.Parameter(
            torch.zeros((2 * window_size[0] - 1) * (2 * window_size[1] - 1), num_heads)
        )
        coords_h = torch.arange(window_size[0])
        coords_w = torch.arange(window_size[1])
        coords = torch.stack(torch.meshgrid(coords_h, coords_w, indexing="ij"))
        coords_flatten = torch.flatten(coords, 1)
        relative_coords = coords_flatten[:, :, None] - coords_flatten[:, None, :]
        relative_coords = relative_coords.permute(1, 2, 0).contiguous()
        relative_coords[:, :, 0] += window_size[0] - 1
        relative_coords[:, :, 1] += window_size[1] - 1
        relative_coords[:, :, 0] *= 2 * window_size[0] - 1
        self.register_buffer("relative_position_index", relative_coords.sum(-1))

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x):
        B, Fq, T, C = x.shape
        wh, ww = self.window_size
        x = rearrange(x, "b (nh wh) (nw ww) c -> (b nh nw) (wh ww) c", wh=wh, ww=ww)

        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.num_heads)
        attn = (q * self.scale) @ k.transpose(-2, -1)

        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        bias = rearrange(bias, "(i j) h -> h i j", i=wh * ww)
        attn = attn + bias.unsqueeze(0)
        attn = self.attn_drop(attn.softmax(dim=-1))

        x = rearrange(attn @ v, "b h n d -> b n (h d)")
        x = self.proj_drop(self.proj(x))
        return rearrange(
            x, "(b nh nw) (wh ww) c -> b (nh wh) (nw ww) c", nh=Fq // wh, nw=T // ww, wh=wh, ww=ww
        )
