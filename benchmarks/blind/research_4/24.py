import math

import torch
import torch.nn as nn


class LoRABranch(nn.Module):
    def __init__(self, dim, rank, alpha, dropout):
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        self.scaling = alpha / rank
        self.dropout = nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.up(self.down(self.dropout(x))) * self.scaling


class LoRAVisionAttention(nn.Module):
    """ViT attention with a frozen fused projection and low-rank updates of the query and value weights.

    Args:
        dim: embedding size.
        num_heads: number of heads.
        rank: rank of the updates.
        alpha: the updates are multiplied by ``alpha / rank``.
    """

    def __init__(self, dim=192, num_heads=3, rank=4, alpha=8, lora_dropout=0.0):
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        for p in self.parameters():
            p.requires_grad_(False)
        self.lora_q = LoRABranch(dim, rank, alpha, lora_dropout)
        self.lora_v = LoRABranch(dim, rank, alpha, lora_dropout)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x)
        qkv[..., :C] += self.lora_q(x)
        qkv[..., C:-C] += self.lora_v(x)

        q, k, v = qkv.reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)
