import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineAttention(nn.Module):
    """Scaled cosine attention of Swin Transformer V2 on a plain sequence.

    Logits are cosine similarities times a learned factor per head, kept in log space and never above
    100. There is no further division by sqrt(head_dim), and keys carry no bias.
    """

    def __init__(self, dim=64, num_heads=4, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.max_log_scale = math.log(100.0)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))

        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x, attn_bias=None):
        """attn_bias: optional tensor added to the logits, broadcastable to (B, heads, N, N)."""
        B, N, C = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=self.max_log_scale).exp()
        if attn_bias is not None:
            attn = attn + attn_bias

        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))
