import torch
from torch import nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.dropout = dropout
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, n, d = x.shape
        q, k, v = [
            t.view(b, n, self.heads, d // self.heads).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1)
        ]
        if mask is not None:
            mask = mask[:, None, None, :]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


class TransformerEncoderBlock(nn.Module):
    """
    Pre-LN Transformer encoder block.

    Args:
        dim (int): embedding size
        heads (int): attention heads
        mlp_dim (int): hidden size of the feed-forward network
        dropout (float): dropout rate
    """

    def __init__(self, dim=128, heads=4, mlp_dim=256, dropout=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(mlp_dim, dim),
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        """mask: bool (batch, seq), True for valid tokens"""
        x = self.drop(self.attn(self.norm1(x), mask))
        x = x + self.drop(self.mlp(self.norm2(x)))
        return x
