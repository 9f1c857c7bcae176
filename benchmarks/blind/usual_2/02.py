import torch
import torch.nn as nn


class TalkingHeadAttn(nn.Module):
    """Talking-heads attention (https://arxiv.org/abs/2003.02436).

    The logits are mixed across heads before the softmax and the probabilities are mixed
    across heads after it, so the weights that multiply the values need not sum to one.
    """

    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = head_dim ** -0.5

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_l = nn.Linear(num_heads, num_heads, bias=False)
        self.proj_w = nn.Linear(num_heads, num_heads, bias=False)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x, key_mask=None):
        """x: (B, N, C); key_mask: bool (B, N), True for real tokens."""
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]

        attn = q @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if key_mask is not None:
            attn = attn.masked_fill(~key_mask[:, None, None, :], torch.finfo(attn.dtype).min)
        attn = attn.softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        x = self.proj(x)
        x = self.proj_drop(x)
        return x
