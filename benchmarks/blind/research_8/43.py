import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_every_two(x):
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply_rotary(x, cos, sin):
    return x * cos + rotate_every_two(x) * sin


class ParallelBlock(nn.Module):
    """GPT-J style block: attention and MLP read the same LayerNorm, both are added to the residual stream.

    Only the first ``rotary_dim`` features of each head are rotated.
    """

    def __init__(self, dim=64, num_heads=4, rotary_dim=8, mlp_ratio=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rotary_dim = rotary_dim
        self.ln = nn.LayerNorm(dim)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.fc_in = nn.Linear(dim, mlp_ratio * dim)
        self.fc_out = nn.Linear(mlp_ratio * dim, dim)
        inv_freq = 1.0 / (10000 ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, t, dtype):
        freqs = torch.outer(torch.arange(t, device=self.inv_freq.device).float(), self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype), emb.sin().to(dtype)

    def _partial(self, x, cos, sin):
        rot, keep = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        return torch.cat((apply_rotary(rot, cos, sin), keep), dim=-1)

    def forward(self, x):
        b, t, d = x.shape
        h = self.ln(x)
        q = self.q_proj(h).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(h).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(h).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        cos, sin = self._rope(t, q.dtype)
        q, k = self._partial(q, cos, sin), self._partial(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attn = self.out_proj(y.transpose(1, 2).reshape(b, t, d))
        mlp = self.fc_out(F.gelu(self.fc_in(h), approximate="tanh"))
        return x + attn + mlp
