import torch
import torch.nn as nn
import torch.nn.functional as F


class HaloAttn(nn.Module):
    """Halo attention (https://arxiv.org/abs/2103.12731) on ``(B, C, H, W)`` maps.

    The queries of a ``block_size`` x ``block_size`` block attend to the block and a border of ``halo_size``
    pixels around it. What lies outside of the image is masked. H and W must be multiples of the block.
    """

    def __init__(self, dim=32, dim_out=None, num_heads=4, dim_head=8, block_size=4, halo_size=1, qkv_bias=False):
        super().__init__()
        assert block_size > 0 and halo_size >= 0
        dim_out = dim_out or dim
        self.num_heads = num_heads
        self.dim_head = dim_head
        self.block_size = block_size
        self.halo_size = halo_size
        self.win_size = block_size + 2 * halo_size
        self.scale = dim_head ** -0.5
        inner = num_heads * dim_head
        self.q = nn.Conv2d(dim, inner, 1, bias=qkv_bias)
        self.kv = nn.Conv2d(dim, 2 * inner, 1, bias=qkv_bias)
        self.proj = nn.Conv2d(inner, dim_out, 1)

        # offsets between a query and a key run from -(block + halo - 1) to block + halo - 1
        span = 2 * (block_size + halo_size) - 1
        self.rel_bias = nn.Parameter(torch.zeros(num_heads, span * span))
        nn.init.trunc_normal_(self.rel_bias, std=0.02)
        q_coord = torch.arange(block_size)
        k_coord = torch.arange(self.win_size) - halo_size
        offset = k_coord[None, :] - q_coord[:, None] + block_size + halo_size - 1
        index = offset[:, None, :, None] * span + offset[None, :, None, :]
        index = index.reshape(block_size ** 2, self.win_size ** 2)
        self.register_buffer("rel_index", index, persistent=False)

    def _unfold(self, x):
        """(B, C, H, W) -> (B, C, win * win, blocks)"""
        cols = F.unfold(x, kernel_size=self.win_size, stride=self.block_size, padding=self.halo_size)
        return cols.view(x.shape[0], x.shape[1], self.win_size ** 2, -1)

    def forward(self, x):
        B, C, H, W = x.shape
        bs = self.block_size
        assert H % bs == 0 and W % bs == 0, "feature map must be divisible by the block size"
        nh, nw = H // bs, W // bs

        # (B, heads, blocks, bs * bs, d), blocks in raster order like those of unfold
        q = self.q(x).view(B, self.num_heads, self.dim_head, nh, bs, nw, bs)
        q = q.permute(0, 1, 3, 5, 4, 6, 2).reshape(B, self.num_heads, nh * nw, bs * bs, self.dim_head)

        k, v = self.kv(x).chunk(2, dim=1)
        k = self._unfold(k).view(B, self.num_heads, self.dim_head, -1, nh * nw)
        v = self._unfold(v).view(B, self.num_heads, self.dim_head, -1, nh * nw)

        attn = torch.einsum("bhnqd,bhdkn->bhnqk", q * self.scale, k)
        attn = attn + self.rel_bias[:, self.rel_index].view(1, self.num_heads, 1, bs * bs, -1)

        # zero padding of unfold looks like a key of value 0, take it out
        inside = self._unfold(torch.ones(1, 1, H, W, device=x.device))
        outside = (inside == 0).view(1, 1, -1, nh * nw).transpose(-1, -2).unsqueeze(3)
        attn = attn.masked_fill(outside, float("-inf")).softmax(dim=-1)

        out = torch.einsum("bhnqk,bhdkn->bhdnq", attn, v)
        out = out.reshape(B, -1, nh, nw, bs, bs).permute(0, 1, 2, 4, 3, 5).reshape(B, -1, H, W)
        return self.proj(out)
