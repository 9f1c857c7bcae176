"""The 3D relative position index is flattened with wrong strides, so different offsets share a bias entry.

282857341/nnFormer #88 (2022)
https://github.com/282857341/nnFormer/pull/88
"""
import torch
import torch.nn as nn


class _WindowAttentionBase(nn.Module):
    """ Window based multi-head self attention module with relative position bias, 3D windows.

    Args:
        dim (int): Number of input channels.
        window_size (tuple[int]): The depth, height and width of the window.
        num_heads (int): Number of attention heads.
    """

    def __init__(self, dim, window_size, num_heads, qkv_bias=True):
        super().__init__()
        self.dim = dim
        self.window_size = window_size  # Wd, Wh, Ww
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5

        # define a parameter table of relative position bias, one entry per 3D offset and head
        self.relative_position_bias_table = nn.Parameter(torch.zeros(
            (2 * window_size[0] - 1) * (2 * window_size[1] - 1) * (2 * window_size[2] - 1), num_heads))

        # get pair-wise relative position index for each token inside the window
        coords_s = torch.arange(self.window_size[0])
        coords_h = torch.arange(self.window_size[1])
        coords_w = torch.arange(self.window_size[2])
        coords = torch.stack(torch.meshgrid([coords_s, coords_h, coords_w], indexing="ij"))
        coords_flatten = torch.flatten(coords, 1)
        relative_coords = coords_flatten[:, :, None] - coords_flatten[:, None, :]
        relative_coords = relative_coords.permute(1, 2, 0).contiguous()
        relative_coords[:, :, 0] += self.window_size[0] - 1  # shift to start from 0
        relative_coords[:, :, 1] += self.window_size[1] - 1
        relative_coords[:, :, 2] += self.window_size[2] - 1
        self.register_buffer("relative_position_index", self.flatten_index(relative_coords))

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=.5)

    def forward(self, x):
        """x: (num_windows*B, Wd*Wh*Ww, C)"""
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        relative_position_bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(N, N, -1)
        attn = attn + relative_position_bias.permute(2, 0, 1).unsqueeze(0)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))


def broken() -> nn.Module:
    class WindowAttention(_WindowAttentionBase):
        def flatten_index(self, relative_coords):
            relative_coords[:, :, 0] *= 3 * self.window_size[1] - 1
            relative_coords[:, :, 1] *= 2 * self.window_size[1] - 1
            return relative_coords.sum(-1)

    torch.manual_seed(0)
    return WindowAttention(32, (2, 3, 2), 4)


def fixed() -> nn.Module:
    class WindowAttention(_WindowAttentionBase):
        def flatten_index(self, relative_coords):
            relative_coords[:, :, 0] *= (2 * self.window_size[1] - 1) * (2 * self.window_size[2] - 1)
            relative_coords[:, :, 1] *= 2 * self.window_size[2] - 1
            return relative_coords.sum(-1)

    torch.manual_seed(0)
    return WindowAttention(32, (2, 3, 2), 4)


def example():
    g = torch.Generator().manual_seed(28)
    return (torch.randn(3, 12, 32, generator=g),), {}
