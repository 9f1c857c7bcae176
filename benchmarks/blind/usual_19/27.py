import torch
import torch.nn as nn
import torch.nn.functional as F


class QKNormAttention(nn.Module):
    """Self-attention with query-key normalization (Henry et al., 2020).

    Every query and key vector is brought to unit length, so the logits are cosine similarities,
    and a learned gain per head takes the place of 1/sqrt(d).
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.0, init_gain: float = 10.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.gain = nn.Parameter(torch.full((num_heads, 1, 1), init_gain))
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask=None):
        """mask: bool, broadcastable to (B, heads, N, N); True where attention is allowed"""
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        q = F.normalize(q)
        k = F.normalize(k)

        out = F.scaled_dot_product_attention(
            q * self.gain,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            scale=1.0,
        )
        return self.proj(out.transpose(1, 2).reshape(B, N, C))
