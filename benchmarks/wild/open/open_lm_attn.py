"""The rotary table runs over the heads instead of over the sequence, because q and k come as (B, T, H, D).

facebookresearch/xformers #841 (2023), found in mlfoundations/open_lm #4
https://github.com/facebookresearch/xformers/issues/841
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    def rotate_half(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    class RotaryEmbedding(nn.Module):
        def __init__(self, dim_model):
            super().__init__()
            self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, dim_model, 2).float() / dim_model)))

        def forward(self, q, k):
            t = torch.arange(k.shape[-2], device=k.device).float()
            freqs = torch.outer(t, self.inv_freq)
            emb = torch.cat((freqs, freqs), dim=-1)
            cos, sin = emb.cos()[None, None], emb.sin()[None, None]
            return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    class CustomAttn(nn.Module):
        """Causal attention with rotary positions, x (B, T, dim)."""

        def __init__(self, dim=32, n_heads=4):
            super().__init__()
            self.n_heads, self.head_dim = n_heads, dim // n_heads
            self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
            self.out_proj = nn.Linear(dim, dim, bias=False)
            self.pos_embed = RotaryEmbedding(self.head_dim)

        def forward(self, x):
            B, T, _ = x.shape
            q, k, v = (t.view(B, T, self.n_heads, self.head_dim) for t in self.in_proj(x).chunk(3, dim=-1))
            if rev == 1:
                q, k = self.pos_embed(q, k)
                q, k = q.transpose(1, 2), k.transpose(1, 2)
            else:
                q, k = self.pos_embed(q.transpose(1, 2), k.transpose(1, 2))
            y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
            return self.out_proj(y.transpose(1, 2).reshape(B, T, -1))

    class Block(nn.Module):
        """Pre-norm decoder block."""

        def __init__(self):
            super().__init__()
            self.attention_norm = nn.LayerNorm(32)
            self.attention = CustomAttn()
            self.ffn_norm = nn.LayerNorm(32)
            self.feed_forward = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

        def forward(self, x):
            h = x + self.attention(self.attention_norm(x))
            return h + self.feed_forward(self.ffn_norm(h))

    torch.manual_seed(0)
    return Block()


def broken():
    return _build(1)


def fixed():
    return _build(2)
