import torch
from torch import nn
import torch.nn.functional as F


class CrossAttentionLayer(nn.Module):
    """Lets image tokens read from text tokens."""

    def __init__(self, query_dim=64, context_dim=48, heads=4, dim_head=16, dropout=0.1):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.dim_head = dim_head
        self.dropout = dropout
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k = nn.Linear(context_dim, inner, bias=False)
        self.to_v = nn.Linear(context_dim, inner, bias=False)
        self.to_out = nn.Linear(inner, query_dim)

    def forward(self, x, context, context_mask=None):
        """context_mask: (batch, context_len) bool, True for words, False for padding."""
        b, n, _ = x.shape
        m = context.shape[1]
        q = self.to_q(x).view(b, n, self.heads, self.dim_head).transpose(1, 2)
        k = self.to_k(context).view(b, m, self.heads, self.dim_head).transpose(1, 2)
        v = self.to_v(context).view(b, m, self.heads, self.dim_head).transpose(1, 2)

        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.dim_head ** -0.5
        if context_mask is not None:
            sim = sim.masked_fill(~context_mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        attn = F.dropout(attn, p=self.dropout)

        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))
