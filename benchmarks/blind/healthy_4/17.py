import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, dim_heads=None):
        super().__init__()
        self.dim_heads = (dim // heads) if dim_heads is None else dim_heads
        dim_hidden = self.dim_heads * heads
        self.heads = heads
        self.to_q = nn.Linear(dim, dim_hidden, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim_hidden, bias=False)
        self.to_out = nn.Linear(dim_hidden, dim)

    def forward(self, x):
        q, k, v = (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        b, t, _ = q.shape
        h, e = self.heads, self.dim_heads

        merge_heads = lambda z: z.reshape(b, -1, h, e).transpose(1, 2).reshape(b * h, -1, e)
        q, k, v = map(merge_heads, (q, k, v))

        dots = torch.einsum('bie,bje->bij', q, k) * (e ** -0.5)
        dots = dots.softmax(dim=-1)
        out = torch.einsum('bij,bje->bie', dots, v)

        out = out.reshape(b, h, -1, e).transpose(1, 2).reshape(b, -1, h * e)
        return self.to_out(out)


class AxialPositionalEmbedding(nn.Module):
    def __init__(self, dim, shape):
        super().__init__()
        h, w = shape
        self.row = nn.Parameter(torch.randn(1, dim, h, 1))
        self.col = nn.Parameter(torch.randn(1, dim, 1, w))

    def forward(self, x):
        return x + self.row + self.col


class AxialAttention(nn.Module):
    """Axial attention over an image (b, c, h, w).

    One attention runs along each column (over h), one along each row (over w). With
    ``sum_axial_out`` their outputs are added; else they are applied one after the other.
    """

    def __init__(self, dim=64, heads=8, dim_heads=None, shape=(16, 16), sum_axial_out=True):
        super().__init__()
        self.pos_emb = AxialPositionalEmbedding(dim, shape)
        self.attn_height = SelfAttention(dim, heads, dim_heads)
        self.attn_width = SelfAttention(dim, heads, dim_heads)
        self.sum_axial_out = sum_axial_out

    @staticmethod
    def _along_height(x, fn):
        b, c, h, w = x.shape
        seq = x.permute(0, 3, 2, 1).reshape(b * w, h, c)
        return fn(seq).reshape(b, w, h, c).permute(0, 3, 2, 1)

    @staticmethod
    def _along_width(x, fn):
        b, c, h, w = x.shape
        seq = x.permute(0, 2, 3, 1).reshape(b * h, w, c)
        return fn(seq).reshape(b, h, w, c).permute(0, 3, 1, 2)

    def forward(self, x):
        x = self.pos_emb(x)
        if self.sum_axial_out:
            return self._along_height(x, self.attn_height) + self._along_width(x, self.attn_width)
        out = self._along_height(x, self.attn_height)
        return self._along_width(out, self.attn_width)
