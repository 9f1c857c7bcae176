import torch
import torch.nn.functional as F
from torch import nn


class BiaslessLayerNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], weight=self.gamma)


class SwiGLU(nn.Module):
    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return F.silu(gate) * x


class ParallelTransformerBlock(nn.Module):
    """PaLM block: attention and feed-forward read the same normalised input and are added to
    the residual together. One key/value head for all the queries. Only the first half of the
    features of a head is rotated.
    """

    def __init__(self, dim=64, dim_head=16, heads=4, ff_mult=4, theta=10000.0):
        super().__init__()
        self.heads = heads
        self.dim_head = dim_head
        self.rot_dim = dim_head // 2
        ff_inner = dim * ff_mult

        self.norm = BiaslessLayerNorm(dim)
        self.fused_dims = (heads * dim_head, dim_head, dim_head, 2 * ff_inner)
        self.fused_proj = nn.Linear(dim, sum(self.fused_dims), bias=False)
        self.attn_out = nn.Linear(heads * dim_head, dim, bias=False)
        self.ff_out = nn.Sequential(SwiGLU(), nn.Linear(ff_inner, dim, bias=False))

        inv_freq = 1.0 / (theta ** (torch.arange(0, self.rot_dim, 2).float() / self.rot_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotate(self, t):
        pos = torch.arange(t.size(-2), device=t.device, dtype=torch.float32)
        freqs = torch.outer(pos, self.inv_freq)
        freqs = torch.cat((freqs, freqs), dim=-1)
        cos, sin = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
        t_rot, t_pass = t[..., : self.rot_dim], t[..., self.rot_dim:]
        x1, x2 = t_rot.chunk(2, dim=-1)
        t_rot = t_rot * cos + torch.cat((-x2, x1), dim=-1) * sin
        return torch.cat((t_rot, t_pass), dim=-1)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v, ff = self.fused_proj(self.norm(x)).split(self.fused_dims, dim=-1)

        q = self.rotate(q.view(b, n, self.heads, self.dim_head).transpose(1, 2))
        k = self.rotate(k.unsqueeze(1)).expand(-1, self.heads, -1, -1)
        v = v.unsqueeze(1).expand(-1, self.heads, -1, -1)

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, n, -1)
        return x + self.attn_out(y) + self.ff_out(ff)
