import torch
import torch.nn as nn
import torch.nn.functional as F


class RelativeAttention2d(nn.Module):
    """Transformer block attention of CoAtNet.

    Multi-head attention over a [B, C, H, W] map with an input-independent relative bias per
    head, pre-norm and residual. The size of the map is fixed at construction.
    """

    def __init__(self, dim: int = 64, image_size=(6, 6), heads: int = 4, dim_head: int = 16, dropout: float = 0.0):
        super().__init__()
        self.ih, self.iw = image_size
        self.heads = heads
        self.dim_head = dim_head
        self.scale = dim_head ** -0.5
        self.dropout = dropout
        inner = heads * dim_head

        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim)
        self.relative_bias_table = nn.Parameter(torch.zeros((2 * self.ih - 1) * (2 * self.iw - 1), heads))
        nn.init.trunc_normal_(self.relative_bias_table, std=0.02)

        ys, xs = torch.meshgrid(torch.arange(self.ih), torch.arange(self.iw), indexing="ij")
        ys, xs = ys.flatten(), xs.flatten()
        dy = ys[:, None] - ys[None, :] + self.ih - 1
        dx = xs[:, None] - xs[None, :] + self.iw - 1
        self.register_buffer("relative_index", dy * (2 * self.iw - 1) + dx, persistent=False)

    def forward(self, x):
        b, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.to_qkv(self.norm(tokens)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, self.dim_head)).transpose(1, 2) for t in (q, k, v))

        q = q * self.scale
        bias = self.relative_bias_table[self.relative_index].permute(2, 0, 1).unsqueeze(0)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.to(q.dtype), dropout_p=self.dropout if self.training else 0.0
        )
        out = self.to_out(out.transpose(1, 2).flatten(2))
        return x + out.transpose(1, 2).reshape(b, c, h, w)
