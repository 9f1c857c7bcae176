import torch
import torch.nn as nn
import torch.nn.functional as F


class FlashSelfAttention(nn.Module):
    """Self-attention on top of the fused kernel.

    Args:
        dim: model width
        num_heads: heads
        attn_drop: dropout on the attention probabilities during training
        proj_drop: dropout on the output during training
    """

    def __init__(self, dim=64, num_heads=4, qkv_bias=True, attn_drop=0.1, proj_drop=0.0, causal=False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.attn_drop,
            is_causal=self.causal,
        )
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))
