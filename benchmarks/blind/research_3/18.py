import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRAFusedAttention(nn.Module):
    """ViT attention whose pretrained fused qkv is frozen; low-rank updates are
    learned for the query and the value projection (Hu et al. 2021, table 5).

    Args:
        dim: embedding size
        num_heads: attention heads
        r: rank of the updates, 0 switches them off
        lora_alpha: updates are scaled by lora_alpha / r
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, r: int = 4, lora_alpha: float = 8.0):
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.r = r
        self.scaling = lora_alpha / r if r else 0.0

        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        for p in self.qkv.parameters():
            p.requires_grad = False
        for p in self.proj.parameters():
            p.requires_grad = False

        if r > 0:
            self.lora_A_q = nn.Parameter(torch.empty(r, dim))
            self.lora_B_q = nn.Parameter(torch.zeros(dim, r))
            self.lora_A_v = nn.Parameter(torch.empty(r, dim))
            self.lora_B_v = nn.Parameter(torch.zeros(dim, r))
            nn.init.kaiming_uniform_(self.lora_A_q, a=math.sqrt(5))
            nn.init.kaiming_uniform_(self.lora_A_v, a=math.sqrt(5))

    def _project(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x)
        if self.r > 0:
            dq = F.linear(F.linear(x, self.lora_A_q), self.lora_B_q) * self.scaling
            dv = F.linear(F.linear(x, self.lora_A_v), self.lora_B_v) * self.scaling
            qkv[..., : self.dim] += dq
            qkv[..., self.dim : 2 * self.dim] += dv
        return qkv

    def forward(self, x: torch.Tensor, attn_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, N, C = x.shape
        qkv = self._project(x)
        q, k, v = qkv.reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        out = out.transpose(1, 2).reshape(B, N, C)
        return self.proj(out)
