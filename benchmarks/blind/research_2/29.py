import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class _LoRA_qkv(nn.Module):
    """Adds low-rank updates to the q and v parts of a frozen fused projection; k stays as pretrained.

    qkv = W x;  q += s * B_q A_q x;  v += s * B_v A_v x,  s = alpha / r
    """

    def __init__(self, qkv: nn.Linear, r: int, alpha: float):
        super().__init__()
        self.qkv = qkv
        self.dim = qkv.in_features
        self.scaling = alpha / r
        self.linear_a_q = nn.Linear(self.dim, r, bias=False)
        self.linear_b_q = nn.Linear(r, self.dim, bias=False)
        self.linear_a_v = nn.Linear(self.dim, r, bias=False)
        self.linear_b_v = nn.Linear(r, self.dim, bias=False)
        for a in (self.linear_a_q, self.linear_a_v):
            nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))
        for b in (self.linear_b_q, self.linear_b_v):
            nn.init.zeros_(b.weight)

    def forward(self, x):
        qkv = self.qkv(x)
        new_q = self.linear_b_q(self.linear_a_q(x)) * self.scaling
        new_v = self.linear_b_v(self.linear_a_v(x)) * self.scaling
        qkv[..., : self.dim] += new_q
        qkv[..., -self.dim:] += new_v
        return qkv


class LoRAAttention(nn.Module):
    """ViT attention of a SAM-like image encoder on (B, H, W, C) with LoRA on q and v."""

    def __init__(self, dim=64, num_heads=4, r=4, alpha=8.0, freeze=True):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        base = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        if freeze:
            for p in list(base.parameters()) + list(self.proj.parameters()):
                p.requires_grad = False
        self.qkv = _LoRA_qkv(base, r, alpha)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, H, W, _ = x.shape
        qkv = self.qkv(x).reshape(B, H * W, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, B * self.num_heads, H * W, -1).unbind(0)
        attn = F.softmax((q * self.scale) @ k.transpose(-2, -1), dim=-1)
        x = (attn @ v).view(B, self.num_heads, H, W, -1).permute(0, 2, 3, 1, 4).reshape(B, H, W, -1)
        return self.proj(x)
