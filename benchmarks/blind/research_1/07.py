""" Cross-covariance attention from XCiT (https://arxiv.org/abs/2106.09681) """
import torch
import torch.nn as nn
import torch.nn.functional as F


class XCA(nn.Module):
    """Attention between channels instead of tokens.

    Queries and keys are L2-normalised along the token axis and a ``head_dim x head_dim``
    cross-covariance matrix takes the role of the attention map. The cost is linear in the
    number of tokens; a learned temperature per head replaces the usual scale.
    """

    def __init__(self, dim=64, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    @torch.jit.ignore
    def no_weight_decay(self):
        return {"temperature"}

    def forward(self, x):
        B, N, C = x.shape
        # (3, B, heads, head_dim, N)
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 4, 1).unbind(0)

        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)
        attn = (q @ k.transpose(-2, -1)) * self.temperature
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)

        # (B, heads, head_dim, N) -> (B, N, heads, head_dim) -> (B, N, C)
        x = (attn @ v).permute(0, 3, 1, 2).reshape(B, N, C)
        x = self.proj(x)
        x = self.proj_drop(x)
        return x
