"""The key padding mask is applied after the softmax, so -inf enters the attention weights themselves.

huggingface/pytorch-image-models #2236 (2024)
https://github.com/huggingface/pytorch-image-models/pull/2236
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class _EvaAttentionBase(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=True, attn_drop=0., proj_drop=0.):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.register_buffer("k_bias", torch.zeros(dim), persistent=False)
        self.v_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = nn.Identity()
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def _qkv(self, x):
        B, N, C = x.shape
        qkv_bias = torch.cat((self.q_bias, self.k_bias, self.v_bias)) if self.q_bias is not None else None
        qkv = F.linear(input=x, weight=self.qkv.weight, bias=qkv_bias)
        return qkv.reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # B, num_heads, N, head_dim


def broken() -> nn.Module:
    class EvaAttention(_EvaAttentionBase):
        def forward(self, x, attn_mask=None):
            """
            Args:
                x: (B, N, C)
                attn_mask: (B, N) bool or 0/1, True (1) for tokens that may be attended to
            """
            B, N, C = x.shape
            q, k, v = self._qkv(x)

            q = q * self.scale
            attn = (q @ k.transpose(-2, -1))

            attn = attn.softmax(dim=-1)
            if attn_mask is not None:
                attn_mask = attn_mask.to(torch.bool)
                attn = attn.masked_fill(~attn_mask[:, None, None, :], float("-inf"))
            attn = self.attn_drop(attn)
            x = attn @ v

            x = x.transpose(1, 2).reshape(B, N, C)
            x = self.norm(x)
            x = self.proj(x)
            x = self.proj_drop(x)
            return x

    torch.manual_seed(0)
    return EvaAttention(32, num_heads=4)


def fixed() -> nn.Module:
    class EvaAttention(_EvaAttentionBase):
        def forward(self, x, attn_mask=None):
            """
            Args:
                x: (B, N, C)
                attn_mask: (B, N) bool or 0/1, True (1) for tokens that may be attended to
            """
            B, N, C = x.shape
            q, k, v = self._qkv(x)

            q = q * self.scale
            attn = (q @ k.transpose(-2, -1))

            if attn_mask is not None:
                attn_mask = attn_mask.to(torch.bool)
                attn = attn.masked_fill(~attn_mask[:, None, None, :], float("-inf"))
            attn = attn.softmax(dim=-1)
            attn = self.attn_drop(attn)
            x = attn @ v

            x = x.transpose(1, 2).reshape(B, N, C)
            x = self.norm(x)
            x = self.proj(x)
            x = self.proj_drop(x)
            return x

    torch.manual_seed(0)
    return EvaAttention(32, num_heads=4)
