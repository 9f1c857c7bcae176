import torch
from einops import rearrange
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x):
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        attn = (torch.einsum("bhid,bhjd->bhij", q, k) * self.scale).softmax(dim=-1)
        out = rearrange(torch.einsum("bhij,bhjd->bhid", attn, v), "b h n d -> b n (h d)")
        return self.to_out(out)


class AxialAttentionBlock(nn.Module):
    """Axial attention over an image-like grid: along the rows, then along the columns.

    Input and output are channel-last, (batch, height, width, dim).
    """

    def __init__(self, dim=32, heads=4, dim_head=8):
        super().__init__()
        self.norm_row = nn.LayerNorm(dim)
        self.norm_col = nn.LayerNorm(dim)
        self.row_attn = SelfAttention(dim, heads, dim_head)
        self.col_attn = SelfAttention(dim, heads, dim_head)

    def forward(self, x):
        b, h, w, _ = x.shape

        rows = rearrange(self.norm_row(x), "b h w d -> (b h) w d")
        rows = self.row_attn(rows)
        x = x + rearrange(rows, "(b h) w d -> b h w d", b=b)

        cols = rearrange(self.norm_col(x), "b h w d -> (b w) h d")
        cols = self.col_attn(cols)
        x = x + rearrange(cols, "(w b) h d -> b h w d", b=b)
        return x
