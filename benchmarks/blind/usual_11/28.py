import torch
from einops import rearrange, repeat
from torch import einsum, nn


class GroupedQueryAttention(nn.Module):
    """
    Grouped-query attention (Ainslie et al., 2023).

    ``heads`` query heads share ``kv_heads`` key/value heads. Every key/value head belongs to a group of
    heads // kv_heads query heads.
    """

    def __init__(self, dim=64, heads=8, kv_heads=2, dim_head=16, causal=True):
        super().__init__()
        assert heads % kv_heads == 0
        self.heads = heads
        self.kv_heads = kv_heads
        self.groups = heads // kv_heads
        self.scale = dim_head ** -0.5
        self.causal = causal

        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * kv_heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x, mask=None):
        n, device = x.shape[1], x.device
        x = self.norm(x)

        q = rearrange(self.to_q(x), "b n (h d) -> b h n d", h=self.heads)
        k, v = rearrange(self.to_kv(x), "b n (two h d) -> two b h n d", two=2, h=self.kv_heads)

        k = repeat(k, "b h n d -> b (h g) n d", g=self.groups)
        v = repeat(v, "b h n d -> b (g h) n d", g=self.groups)

        sim = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        max_neg_value = -torch.finfo(sim.dtype).max
        if mask is not None:
            sim = sim.masked_fill(~rearrange(mask, "b j -> b 1 1 j"), max_neg_value)
        if self.causal:
            causal_mask = torch.ones((n, n), device=device, dtype=torch.bool).triu(1)
            sim = sim.masked_fill(causal_mask, max_neg_value)

        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
