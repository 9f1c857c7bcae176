import torch
import torch.nn as nn


class TalkingHeadAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020) for causal language models.

    The heads are mixed linearly before the softmax (logits) and after it (weights). The causal mask is
    applied between the two, and the mixing of the weights has no bias, so that a forbidden cell stays
    exactly zero. The mixed weights are neither positive nor normalised.
    """

    def __init__(self, dim=64, num_heads=4, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj_l = nn.Linear(num_heads, num_heads)
        self.proj_w = nn.Linear(num_heads, num_heads, bias=False)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]

        attn = q @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        future = torch.ones(N, N, dtype=torch.bool, device=x.device).triu(1)
        attn = attn.masked_fill(future, float("-inf")).softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))
