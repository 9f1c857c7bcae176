import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, context_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(context_dim, dim)
        self.value = nn.Linear(context_dim, dim)
        self.dense = nn.Linear(dim, dim)

    def forward(self, x, context, mask=None):
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in (self.query(x), self.key(context), self.value(context))
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.dense(y.transpose(1, 2).flatten(2))


class QFormerLayer(nn.Module):
    """Post-norm Q-Former layer for image-grounded text generation.

    Query tokens and text share the self-attention. Queries see the queries only; text sees
    all queries and, causally, the text. Only the queries cross-attend to the image, and
    queries and text have separate feed-forward networks.

    text_mask: [B, T] with 1 for tokens (right-padded).
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, image_dim: int = 96, num_queries: int = 8):
        super().__init__()
        self.query_tokens = nn.Parameter(torch.randn(1, num_queries, dim) * 0.02)
        self.self_attn = Attention(dim, dim, num_heads)
        self.cross_attn = Attention(dim, image_dim, num_heads)
        self.norm_self = nn.LayerNorm(dim)
        self.norm_cross = nn.LayerNorm(dim)
        self.ffn_query = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.ffn_text = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.norm_query = nn.LayerNorm(dim)
        self.norm_text = nn.LayerNorm(dim)

    @staticmethod
    def build_mask(text_mask, num_queries):
        B, T = text_mask.shape
        n = num_queries + T
        mask = torch.ones(n, n, dtype=torch.bool, device=text_mask.device).tril()
        mask[:num_queries, :num_queries] = True
        valid = F.pad(text_mask.bool(), (num_queries, 0), value=True)
        return mask[None, None] & valid[:, None, None, :]

    def forward(self, text, image, text_mask=None):
        B, T, _ = text.shape
        if text_mask is None:
            text_mask = torch.ones(B, T, dtype=torch.long, device=text.device)
        nq = self.query_tokens.size(1)

        x = torch.cat([self.query_tokens.expand(B, -1, -1), text], dim=1)
        x = self.norm_self(x + self.self_attn(x, x, self.build_mask(text_mask, nq)))

        queries, text = x[:, :nq], x[:, nq:]
        queries = self.norm_cross(queries + self.cross_attn(queries, image))
        queries = self.norm_query(queries + self.ffn_query(queries))
        text = self.norm_text(text + self.ffn_text(text))
        return queries, text
