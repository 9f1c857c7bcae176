import torch
import torch.nn as nn
import torch.nn.functional as F


class QFormerAttention(nn.Module):
    def __init__(self, dim, kv_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.dropout = dropout
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(kv_dim, dim)
        self.v = nn.Linear(kv_dim, dim)
        self.o = nn.Linear(dim, dim)

    def _shape(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, context, context_mask=None):
        b, n, d = x.shape
        q = self._shape(self.q(x) * self.scale)
        k, v = self._shape(self.k(context)), self._shape(self.v(context))
        mask = None if context_mask is None else context_mask[:, None, None, :].bool()
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class QFormer(nn.Module):
    """Learned queries that read an image encoder, cross attention in every second layer.

    image_embeds: [B, N, vision_dim], image_mask: [B, N] with 1 for real patches -> [B, num_queries, dim]
    """

    def __init__(self, num_queries=8, dim=64, vision_dim=48, num_heads=4, num_layers=4, cross_freq=2):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, num_queries, dim) * 0.02)
        self.norm = nn.LayerNorm(dim)
        self.self_attn = nn.ModuleList(QFormerAttention(dim, dim, num_heads) for _ in range(num_layers))
        self.cross_attn = nn.ModuleDict(
            {str(i): QFormerAttention(dim, vision_dim, num_heads) for i in range(num_layers) if i % cross_freq == 0}
        )
        self.ln_self = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_layers))
        self.ln_cross = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_layers))
        self.ln_ffn = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_layers))
        self.ffn = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(num_layers)
        )

    def forward(self, image_embeds, image_mask=None):
        x = self.norm(self.queries.expand(image_embeds.size(0), -1, -1))
        for i in range(len(self.ffn)):
            x = self.ln_self[i](x + self.self_attn[i](x, x))
            if str(i) in self.cross_attn:
                x = self.ln_cross[i](x + self.cross_attn[str(i)](x, image_embeds, image_mask))
            x = self.ln_ffn[i](x + self.ffn[i](x))
        return x
