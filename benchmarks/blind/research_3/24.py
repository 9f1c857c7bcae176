import torch
import torch.nn as nn


class RelativeSelfAttention2d(nn.Module):
    """CoAtNet transformer stage attention on a fixed [C, ih, iw] grid.

    The logits get a learned, translation-equivariant bias: one value per head and
    per offset (dy, dx) between query and key.
    """

    def __init__(self, inp=32, oup=32, image_size=(6, 6), heads=4, dim_head=8, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        self.ih, self.iw = image_size
        self.heads = heads
        self.scale = dim_head ** -0.5

        self.relative_bias_table = nn.Parameter(
            torch.zeros((2 * self.ih - 1) * (2 * self.iw - 1), heads))
        nn.init.trunc_normal_(self.relative_bias_table, std=0.2)

        coords = torch.stack(torch.meshgrid(
            torch.arange(self.ih), torch.arange(self.iw), indexing='ij')).flatten(1)
        rel = coords[:, :, None] - coords[:, None, :]
        rel[0] += self.ih - 1
        rel[1] += self.iw - 1
        rel[0] *= 2 * self.iw - 1
        self.register_buffer("relative_index", rel.sum(0), persistent=False)

        self.norm = nn.LayerNorm(inp)
        self.to_qkv = nn.Linear(inp, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, oup), nn.Dropout(dropout))

    def forward(self, x):
        b, c, h, w = x.shape
        n = h * w
        y = self.norm(x.flatten(2).transpose(1, 2))
        q, k, v = self.to_qkv(y).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))

        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale

        bias = self.relative_bias_table[self.relative_index.view(-1)]
        bias = bias.view(self.heads, n, n)
        dots = dots + bias.unsqueeze(0)

        attn = dots.softmax(dim=-1)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(b, n, -1)
        out = self.to_out(out)
        return out.transpose(1, 2).reshape(b, -1, h, w)
