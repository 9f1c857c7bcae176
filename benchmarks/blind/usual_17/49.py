import torch
import torch.nn as nn
import torch.nn.functional as F


class PaLMParallelBlock(nn.Module):
    """PaLM block: attention and SwiGLU MLP read the same normalised input in parallel and share
    one fused input projection. Multi-query (a single K/V head), no biases, rotary positions.
    The residual is added here."""

    def __init__(self, dim=64, num_heads=4, dim_head=16, ff_mult=4):
        super().__init__()
        self.num_heads = num_heads
        self.dim_head = dim_head
        ff_inner = dim * ff_mult
        self.fused_dims = (num_heads * dim_head, dim_head, dim_head, ff_inner * 2)
        self.norm_gamma = nn.Parameter(torch.ones(dim))
        self.fused_proj = nn.Linear(dim, sum(self.fused_dims), bias=False)
        self.attn_out = nn.Linear(num_heads * dim_head, dim, bias=False)
        self.ff_out = nn.Linear(ff_inner, dim, bias=False)
        inv_freq = 1.0 / (10000 ** (torch.arange(0, dim_head, 2).float() / dim_head))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotary(self, t):
        n = t.size(-2)
        freqs = torch.outer(torch.arange(n, device=t.device).float(), self.inv_freq)
        pos = torch.cat((freqs, freqs), dim=-1)
        t1, t2 = t.chunk(2, dim=-1)
        rotated = torch.cat((-t2, t1), dim=-1)
        return (t * pos.cos() + rotated * pos.sin()).to(t.dtype)

    def forward(self, x):
        b, n, d = x.shape
        h = F.layer_norm(x, (d,), self.norm_gamma)
        q, k, v, ff = self.fused_proj(h).split(self.fused_dims, dim=-1)

        q = q.view(b, n, self.num_heads, self.dim_head).transpose(1, 2)
        k, v = k.unsqueeze(1), v.unsqueeze(1)
        q, k = self.rotary(q), self.rotary(k)
        k = k.expand(-1, self.num_heads, -1, -1)
        v = v.expand(-1, self.num_heads, -1, -1)
        attn = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attn = attn.transpose(1, 2).reshape(b, n, -1)

        value, gate = ff.chunk(2, dim=-1)
        return x + self.attn_out(attn) + self.ff_out(F.silu(gate) * value)
