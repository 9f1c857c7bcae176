import torch
from torch import nn


class TalkingHeadsAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020) as used in CaiT.

    Logits are mixed across heads before the softmax and weights are mixed again after it.
    After the second mixing a row of weights is in general not a distribution any more.
    """

    def __init__(self, dim=64, num_heads=4, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_l = nn.Linear(num_heads, num_heads)
        self.proj_w = nn.Linear(num_heads, num_heads)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x, key_mask=None):
        """key_mask: (B, N) bool, False on keys to ignore."""
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]

        attn = q @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if key_mask is not None:
            attn = attn.masked_fill(~key_mask[:, None, None, :], torch.finfo(attn.dtype).min)
        attn = attn.softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if key_mask is not None:
            attn = attn.masked_fill(~key_mask[:, None, None, :], 0.0)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))
