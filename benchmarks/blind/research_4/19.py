import torch
import torch.nn as nn


class Mlp(nn.Sequential):
    def __init__(self, dim, ratio=4):
        super().__init__(nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim))


class TalkingHeadAttn(nn.Module):
    # heads are mixed before and after the softmax, so the mixed weights need not sum to one
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj_l = nn.Linear(num_heads, num_heads)
        self.proj_w = nn.Linear(num_heads, num_heads)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        attn = attn.softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class ClassAttn(nn.Module):
    # the only query is the class token
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, u):
        B, N, C = u.shape
        h, d = self.num_heads, C // self.num_heads
        q = self.q(u[:, :1]).reshape(B, 1, h, d).transpose(1, 2) * self.scale
        k = self.k(u).reshape(B, N, h, d).transpose(1, 2)
        v = self.v(u).reshape(B, N, h, d).transpose(1, 2)
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, 1, C))


class LayerScaleBlock(nn.Module):
    def __init__(self, dim, num_heads, init_values):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = TalkingHeadAttn(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)
        self.gamma_1 = nn.Parameter(init_values * torch.ones(dim))
        self.gamma_2 = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        x = x + self.gamma_1 * self.attn(self.norm1(x))
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class ClassBlock(nn.Module):
    def __init__(self, dim, num_heads, init_values):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = ClassAttn(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim)
        self.gamma_1 = nn.Parameter(init_values * torch.ones(dim))
        self.gamma_2 = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, cls, x):
        u = torch.cat((cls, x), dim=1)
        cls = cls + self.gamma_1 * self.attn(self.norm1(u))
        return cls + self.gamma_2 * self.mlp(self.norm2(cls))


class CaiTTrunk(nn.Module):
    """CaiT: patches first talk among themselves, without a class token; then the class token reads them."""

    def __init__(self, dim=96, num_heads=4, depth=2, cls_depth=2, num_patches=196, init_values=1e-1):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches, dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.blocks = nn.ModuleList([LayerScaleBlock(dim, num_heads, init_values) for _ in range(depth)])
        self.cls_blocks = nn.ModuleList([ClassBlock(dim, num_heads, init_values) for _ in range(cls_depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.pos_embed[:, : x.size(1)]
        for blk in self.blocks:
            x = blk(x)
        cls = self.cls_token.expand(x.size(0), -1, -1)
        for blk in self.cls_blocks:
            cls = blk(cls, x)
        return self.norm(cls)[:, 0]
