import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderAttention(nn.Module):
    """Bidirectional attention with fused qkv and torch SDPA."""

    def __init__(self, dim=64, num_heads=4, attn_drop=0.0, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        """
        Args:
            x: (B, N, C)
            key_padding_mask: bool (B, N), True marks padding positions, same as in
                nn.MultiheadAttention.
        """
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)

        attn_mask = None
        if key_padding_mask is not None:
            attn_mask = key_padding_mask.view(B, 1, 1, N).expand(-1, self.num_heads, N, -1)

        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=attn_mask,
            dropout_p=self.attn_drop if self.training else 0.0,
        )
        y = y.transpose(1, 2).reshape(B, N, C)
        return self.proj(y)
