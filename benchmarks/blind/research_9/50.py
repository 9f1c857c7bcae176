from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHead(nn.Module):
    """Attention with a residual and post-norm, as in BERT."""

    def __init__(self, dim: int, ctx_dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(ctx_dim, dim)
        self.value = nn.Linear(ctx_dim, dim)
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x, ctx, keep=None):
        split = lambda t: t.view(t.size(0), t.size(1), self.heads, -1).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.query(x)), split(self.key(ctx)), split(self.value(ctx))
        mask = None if keep is None else keep[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.norm(x + self.dense(y.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x):
        return self.norm(x + self.down(F.gelu(self.up(x))))


class QFormer(nn.Module):
    """Querying transformer of BLIP-2 (joint mode, as for image-text matching).

    Learned queries and the text share the self attention, where everybody sees everybody. Only the queries
    read the image, in every ``cross_attention_freq``-th layer, and they have a feed-forward network of
    their own.

    image_embeds [B, P, vision_dim]; text_embeds [B, T, dim] and text_mask [B, T] (1 = token) are optional.
    Returns the queries [B, num_query, dim] and the text states (or None).
    """

    def __init__(
        self,
        dim: int = 64,
        vision_dim: int = 48,
        num_heads: int = 4,
        num_layers: int = 4,
        num_query: int = 8,
        cross_attention_freq: int = 2,
    ):
        super().__init__()
        self.num_query = num_query
        self.freq = cross_attention_freq
        self.query_tokens = nn.Parameter(torch.randn(1, num_query, dim) * 0.02)
        self.embed_norm = nn.LayerNorm(dim, eps=1e-12)
        self.self_attn = nn.ModuleList([MultiHead(dim, dim, num_heads) for _ in range(num_layers)])
        self.cross_attn = nn.ModuleDict(
            {str(i): MultiHead(dim, vision_dim, num_heads) for i in range(num_layers) if i % self.freq == 0}
        )
        self.ffn_query = nn.ModuleList([FeedForward(dim) for _ in range(num_layers)])
        self.ffn_text = nn.ModuleList([FeedForward(dim) for _ in range(num_layers)])

    def forward(
        self,
        image_embeds: torch.Tensor,
        text_embeds: Optional[torch.Tensor] = None,
        text_mask: Optional[torch.Tensor] = None,
    ):
        B, nq = image_embeds.size(0), self.num_query
        x = self.query_tokens.expand(B, -1, -1)
        keep = None
        if text_embeds is not None:
            x = torch.cat([x, text_embeds], dim=1)
            if text_mask is not None:
                ones = torch.ones(B, nq, dtype=torch.bool, device=x.device)
                keep = torch.cat([ones, text_mask.bool()], dim=1)
        x = self.embed_norm(x)

        for i, attn in enumerate(self.self_attn):
            x = attn(x, x, keep)
            queries, text = x[:, :nq], x[:, nq:]
            if str(i) in self.cross_attn:
                queries = self.cross_attn[str(i)](queries, image_embeds)
            queries = self.ffn_query[i](queries)
            x = torch.cat([queries, self.ffn_text[i](text)], dim=1) if text_embeds is not None else queries
        return x[:, :nq], (x[:, nq:] if text_embeds is not None else None)
