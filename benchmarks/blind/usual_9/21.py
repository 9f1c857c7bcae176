import torch
import torch.nn.functional as F
from torch import nn
from einops import rearrange


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class CrossAttention(nn.Module):
    """Self-attention, or cross-attention when a context is given."""

    def __init__(self, query_dim=256, context_dim=None, heads=8, dim_head=32, dropout=0.1):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = default(context_dim, query_dim)
        self.heads = heads
        self.dropout = dropout

        self.norm = nn.LayerNorm(query_dim)
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def forward(self, x, context=None, mask=None):
        """mask: (batch, context length) bool, True where the context may be attended."""
        x = self.norm(x)
        context = default(context, x)

        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = map(lambda t: rearrange(t, "b n (h d) -> b h n d", h=self.heads), (q, k, v))

        if exists(mask):
            mask = rearrange(mask, "b j -> b 1 1 j")

        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.to_out(out)
