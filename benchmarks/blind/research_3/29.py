import torch
import torch.nn as nn
import torch.nn.functional as F


class LayerNormProxy(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class DeformableAttention2d(nn.Module):
    """Keys and values are sampled from the feature map at a coarse reference grid
    moved by offsets that are predicted from the queries. x: [B, C, H, W]."""

    def __init__(self, dim=32, n_heads=4, n_groups=2, stride=2, ksize=3, offset_range_factor=1.0):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.scale = self.head_dim ** -0.5
        self.n_groups = n_groups
        self.group_dim = dim // n_groups
        self.offset_range_factor = offset_range_factor

        self.conv_offset = nn.Sequential(
            nn.Conv2d(self.group_dim, self.group_dim, ksize, stride, ksize // 2, groups=self.group_dim),
            LayerNormProxy(self.group_dim),
            nn.GELU(),
            nn.Conv2d(self.group_dim, 2, 1, bias=False),
        )
        self.proj_q = nn.Conv2d(dim, dim, 1)
        self.proj_k = nn.Conv2d(dim, dim, 1)
        self.proj_v = nn.Conv2d(dim, dim, 1)
        self.proj_out = nn.Conv2d(dim, dim, 1)

    @torch.no_grad()
    def _reference(self, hk, wk, b, dtype, device):
        y, x = torch.meshgrid(
            torch.linspace(0.5, hk - 0.5, hk, dtype=dtype, device=device),
            torch.linspace(0.5, wk - 0.5, wk, dtype=dtype, device=device),
            indexing='ij',
        )
        ref = torch.stack((y / hk * 2 - 1, x / wk * 2 - 1), dim=-1)
        return ref[None].expand(b * self.n_groups, -1, -1, -1)

    def forward(self, x):
        B, C, H, W = x.shape
        q = self.proj_q(x)

        q_off = q.reshape(B * self.n_groups, self.group_dim, H, W)
        offset = self.conv_offset(q_off)
        hk, wk = offset.shape[2:]
        n_sample = hk * wk

        limit = torch.tensor([1.0 / hk, 1.0 / wk], dtype=x.dtype, device=x.device).view(1, 2, 1, 1)
        offset = offset.tanh() * limit * self.offset_range_factor
        offset = offset.permute(0, 2, 3, 1)
        pos = (self._reference(hk, wk, B, x.dtype, x.device) + offset).clamp(-1.0, 1.0)

        x_sampled = F.grid_sample(
            x.reshape(B * self.n_groups, self.group_dim, H, W),
            pos, mode='bilinear', align_corners=False,
        ).reshape(B, C, 1, n_sample)

        q = q.reshape(B, self.n_heads, self.head_dim, H * W)
        k = self.proj_k(x_sampled).reshape(B, self.n_heads, self.head_dim, n_sample)
        v = self.proj_v(x_sampled).reshape(B, self.n_heads, self.head_dim, n_sample)

        attn = torch.einsum('bhcm,bhcn->bhmn', q, k) * self.scale
        attn = attn.softmax(dim=-1)
        out = torch.einsum('bhmn,bhcn->bhcm', attn, v)
        return self.proj_out(out.reshape(B, C, H, W))
