"""The rotary embedding rotates along dim -2, which is the head axis of the (batch, seq, head, dim) queries and keys.

mlfoundations/open_lm #4 (2023)
https://github.com/mlfoundations/open_lm/issues/4
"""
import torch
from torch import nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class RotaryEmbedding(nn.Module):
    """
    The rotary position embeddings from RoFormer_ (Su et. al). The sequence dimension is dim -2.
    """

    def __init__(self, dim_model: int):
        super().__init__()
        inv_freq = 1.0 / (10000 ** (torch.arange(0, dim_model, 2).float() / dim_model))
        self.register_buffer("inv_freq", inv_freq)

    def _update_cos_sin_tables(self, x, seq_dimension=-2):
        t = torch.arange(x.shape[seq_dimension], device=x.device, dtype=torch.float32)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos()[None, None, :, :], emb.sin()[None, None, :, :]

    def forward(self, q, k):
        cos, sin = self._update_cos_sin_tables(k, seq_dimension=-2)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class _CustomAttnBase(nn.Module):
    def __init__(self, rotary, dim, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.pos_embed = rotary(self.head_dim)

    def forward(self, x: torch.Tensor):
        batchsize, q_len, _ = x.shape
        queries, keys, vals = self.in_proj(x).chunk(3, dim=-1)
        queries = queries.view(batchsize, q_len, self.n_heads, self.head_dim)
        keys = keys.view(batchsize, q_len, self.n_heads, self.head_dim)
        vals = vals.view(batchsize, q_len, self.n_heads, self.head_dim)
        queries, keys, vals = self.pos_embed(queries, keys, vals)
        output = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), vals.transpose(1, 2), is_causal=True)
        return self.out_proj(output.transpose(1, 2).reshape(batchsize, q_len, -1))


class _Block(nn.Module):
    def __init__(self, attention, dim):
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim, bias=False), nn.SiLU(), nn.Linear(4 * dim, dim, bias=False))

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


def broken() -> nn.Module:
    class RotaryWithCast(RotaryEmbedding):
        def forward(self, q, k, v):
            q, k = super().forward(q, k)
            return q.to(v.dtype), k.to(v.dtype), v

    class CustomAttn(_CustomAttnBase):
        """Causal attention on x of shape (batch, seq, dim)."""

    torch.manual_seed(0)
    return _Block(CustomAttn(RotaryWithCast, 32, 4), 32)


def fixed() -> nn.Module:
    class RotaryWithCast(RotaryEmbedding):
        def forward(self, q, k, v):
            q, k = super().forward(q.permute(0, 2, 1, 3), k.permute(0, 2, 1, 3))
            q = q.permute(0, 2, 1, 3)
            k = k.permute(0, 2, 1, 3)
            return q.to(v.dtype), k.to(v.dtype), v

    class CustomAttn(_CustomAttnBase):
        """Causal attention on x of shape (batch, seq, dim)."""

    torch.manual_seed(0)
    return _Block(CustomAttn(RotaryWithCast, 32, 4), 32)
