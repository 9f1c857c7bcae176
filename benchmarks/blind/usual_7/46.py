import torch
import torch.nn.functional as F
from torch import nn
from einops import rearrange


class Attention(nn.Module):
    def __init__(self, dim=64, heads=4, dim_head=16, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.dropout = dropout
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, context=None, mask=None):
        """
        einstein notation
        b - batch, n - queries, j - keys, h - heads, d - dimension per head
        mask: (b, j) bool, True means the key takes part
        """
        x = self.norm(x)
        kv_input = x if context is None else context
        q = self.to_q(x)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=self.heads), (q, k, v))

        q = q * self.scale

        if mask is not None:
            mask = rearrange(mask, 'b j -> b 1 1 j')

        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.
        )
        out = rearrange(out, 'b h n d -> b n (h d)')
        return self.to_out(out)
