import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineAttentionBlock(nn.Module):
    """Transformer block of Swin V2: scaled cosine attention and residual post-norm.

    * q and k have unit length, so there is no 1/sqrt(d); the learned log-scale of a head
      is clamped so that the factor is at most 100.
    * the norms sit on the branches, after attention and MLP and before the addition.
    * the key projection has no bias.
    """

    MAX_LOG_SCALE = math.log(1.0 / 0.01)

    def __init__(self, dim=64, num_heads=4, mlp_ratio=4.0):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_weight = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.proj = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def attention(self, x, key_mask):
        B, N, C = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv_weight.weight, bias)
        q, k, v = qkv.view(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=self.MAX_LOG_SCALE).exp()
        if key_mask is not None:
            attn = attn.masked_fill(~key_mask[:, None, None, :], torch.finfo(attn.dtype).min)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x, key_mask=None):
        """key_mask: bool (B, N), True for tokens that exist."""
        x = x + self.norm1(self.attention(x, key_mask))
        x = x + self.norm2(self.mlp(x))
        return x
