import torch
import torch.nn as nn
import torch.nn.functional as F


class QFormerLayer(nn.Module):
    """Joint layer over learned queries and text (BLIP-2).

    Queries and text share the self attention, only the queries look at the image.

    mode:
        "itm"  everything sees everything,
        "itc"  queries and text do not see each other,
        "itg"  image grounded generation: queries see only queries; a text token sees
               all queries and the text tokens up to itself.
    """

    def __init__(self, dim=64, num_heads=4, num_queries=8, vision_dim=96):
        super().__init__()
        self.num_queries = num_queries
        self.num_heads = num_heads
        self.query_tokens = nn.Parameter(torch.randn(1, num_queries, dim) * 0.02)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.self_out = nn.Linear(dim, dim)
        self.self_norm = nn.LayerNorm(dim)
        self.cross_q = nn.Linear(dim, dim)
        self.cross_kv = nn.Linear(vision_dim, 2 * dim)
        self.cross_out = nn.Linear(dim, dim)
        self.cross_norm = nn.LayerNorm(dim)
        make_ff = lambda: nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.ff_query, self.ff_text = make_ff(), make_ff()
        self.ff_query_norm, self.ff_text_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def build_mask(self, text_mask, mode):
        B, T = text_mask.shape
        nq = self.num_queries
        allowed = torch.ones(nq + T, nq + T, dtype=torch.bool, device=text_mask.device)
        if mode == "itc":
            allowed[:nq, nq:] = False
            allowed[nq:, :nq] = False
        elif mode == "itg":
            allowed[nq:, :nq] = False
            allowed[nq:, nq:] = allowed[nq:, nq:].tril()
        keys = torch.cat([text_mask.new_ones(B, nq, dtype=torch.bool), text_mask.bool()], dim=1)
        return allowed[None, None] & keys[:, None, None, :]

    def _heads(self, t):
        return t.view(t.size(0), t.size(1), self.num_heads, -1).transpose(1, 2)

    def forward(self, image_feats, text_embeds, text_mask=None, mode="itg"):
        B, T, C = text_embeds.shape
        if text_mask is None:
            text_mask = torch.ones(B, T, dtype=torch.long, device=text_embeds.device)
        x = torch.cat([self.query_tokens.expand(B, -1, -1), text_embeds], dim=1)

        q, k, v = map(self._heads, self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.build_mask(text_mask, mode))
        x = self.self_norm(x + self.self_out(y.transpose(1, 2).flatten(2)))

        queries, text = x[:, : self.num_queries], x[:, self.num_queries:]
        k, v = map(self._heads, self.cross_kv(image_feats).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(self._heads(self.cross_q(queries)), k, v)
        queries = self.cross_norm(queries + self.cross_out(y.transpose(1, 2).flatten(2)))

        queries = self.ff_query_norm(queries + self.ff_query(queries))
        text = self.ff_text_norm(text + self.ff_text(text))
        return queries, text
