import torch
import torch.nn as nn


class DropKeyAttention(nn.Module):
    """
    ViT attention with DropKey (Li et al., 2022) in place of attention dropout.

    While training, random query/key pairs are removed before the softmax, which then renormalises the row by
    itself: no 1/(1-p) factor. A token never loses itself, so no row runs empty. Nothing is dropped in eval mode.

    key_padding_mask follows nn.MultiheadAttention: (B, N), True = ignore this key.
    """

    def __init__(self, dim=64, num_heads=4, mask_ratio=0.1, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.mask_ratio = mask_ratio
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)

        if self.training and self.mask_ratio > 0:
            drop = torch.rand_like(attn) < self.mask_ratio
            drop = drop & ~torch.eye(N, dtype=torch.bool, device=x.device)
            attn = attn + drop.to(attn.dtype) * -1e12
        if key_padding_mask is not None:
            attn = attn.masked_fill(key_padding_mask[:, None, None, :], -1e18)

        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)
