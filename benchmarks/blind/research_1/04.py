import torch
import torch.nn as nn
import torch.nn.functional as F


class ChannelLayerNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class DeformableAttention2D(nn.Module):
    """Deformable attention in the spirit of DAT: keys and values are sampled from the feature
    map at a regular grid of reference points plus offsets predicted from the queries.

    Input and output are ``[B, C, H, W]``.
    """

    def __init__(self, dim=64, num_heads=4, n_groups=2, stride=2, offset_range_factor=2.0,
                 attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.n_groups = n_groups
        self.group_channels = dim // n_groups
        self.offset_range_factor = offset_range_factor

        gc = self.group_channels
        self.conv_offset = nn.Sequential(
            nn.Conv2d(gc, gc, 3, stride, 1, groups=gc),
            ChannelLayerNorm(gc),
            nn.GELU(),
            nn.Conv2d(gc, 2, 1, bias=False),
        )
        self.proj_q = nn.Conv2d(dim, dim, 1)
        self.proj_k = nn.Conv2d(dim, dim, 1)
        self.proj_v = nn.Conv2d(dim, dim, 1)
        self.proj_out = nn.Conv2d(dim, dim, 1)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj_drop = nn.Dropout(proj_drop)

    @staticmethod
    def _reference_points(h, w, n, dtype, device):
        ys, xs = torch.meshgrid(
            (torch.arange(h, dtype=dtype, device=device) + 0.5) / h,
            (torch.arange(w, dtype=dtype, device=device) + 0.5) / w,
            indexing="ij",
        )
        ref = torch.stack((ys, xs), dim=-1) * 2.0 - 1.0
        return ref[None].expand(n, -1, -1, -1)

    def forward(self, x):
        B, C, H, W = x.shape
        g, gc = self.n_groups, self.group_channels

        q = self.proj_q(x)
        offset = self.conv_offset(q.reshape(B * g, gc, H, W))
        hk, wk = offset.shape[-2:]
        n_sample = hk * wk

        # limit offsets to a few cells of the sampling grid
        cell = torch.tensor([1.0 / hk, 1.0 / wk], dtype=x.dtype, device=x.device).view(1, 2, 1, 1)
        offset = offset.tanh() * cell * self.offset_range_factor
        offset = offset.permute(0, 2, 3, 1)

        reference = self._reference_points(hk, wk, B * g, x.dtype, x.device)
        pos = (offset + reference).clamp(-1.0, 1.0)

        sampled = F.grid_sample(x.reshape(B * g, gc, H, W), pos, mode="bilinear", align_corners=False)
        sampled = sampled.reshape(B, C, 1, n_sample)

        q = q.reshape(B * self.num_heads, self.head_dim, H * W)
        k = self.proj_k(sampled).reshape(B * self.num_heads, self.head_dim, n_sample)
        v = self.proj_v(sampled).reshape(B * self.num_heads, self.head_dim, n_sample)

        attn = torch.einsum("bcm,bcn->bmn", q, k) * self.scale
        attn = self.attn_drop(attn.softmax(dim=2))
        out = torch.einsum("bmn,bcn->bcm", attn, v).reshape(B, C, H, W)
        return self.proj_drop(self.proj_out(out))
