import torch
from einops import rearrange
from torch import einsum, nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=32):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        attn = (einsum("b h i d, b h j d -> b h i j", q, k) * self.scale).softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class AxialAttention(nn.Module):
    """Attention along the rows plus attention along the columns of a feature map.

    Tokens come flattened in raster order, (b, h * w, dim), and leave in that order.
    """

    def __init__(self, dim=128, heads=4, dim_head=32, grid=(8, 8)):
        super().__init__()
        self.grid = grid
        self.norm = nn.LayerNorm(dim)
        self.row_attn = Attention(dim, heads, dim_head)
        self.col_attn = Attention(dim, heads, dim_head)

    def forward(self, tokens):
        b = tokens.shape[0]
        h, w = self.grid
        x = rearrange(self.norm(tokens), "b (h w) c -> b h w c", h=h, w=w)

        rows = self.row_attn(rearrange(x, "b h w c -> (b h) w c"))
        rows = rearrange(rows, "(b h) w c -> b (h w) c", b=b)

        cols = self.col_attn(rearrange(x, "b h w c -> (b w) h c"))
        cols = rearrange(cols, "(b w) h c -> b (w h) c", b=b)

        return tokens + rows + cols
