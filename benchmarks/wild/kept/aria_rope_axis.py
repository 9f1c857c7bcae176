"""Queries and keys are not transposed for the rotary embedding, which then rotates along the head axis.

EleutherAI/aria #30 (2023)
https://github.com/EleutherAI/aria/pull/30
"""
import torch
from torch import nn
from torch.nn import functional as F


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, x, seq_dim=-2):
        t = torch.arange(x.shape[seq_dim], device=x.device).type_as(self.inv_freq)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class _FusedEncoderBlockBase(nn.Module):
    """Transformer encoder block using F.scaled_dot_product_attention(), causal, with rotary embeddings."""

    def __init__(self, d_model: int, n_heads: int, drop_p: float = 0.0):
        super().__init__()
        self.drop_p = drop_p
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.rotary_emb = RotaryEmbedding(self.d_head)
        self.mixed_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.att_proj_linear = nn.Linear(d_model, d_model)
        self.norm1 = nn.LayerNorm(d_model)

    def forward(self, src: torch.Tensor):
        return src + self._att_block(self.norm1(src))

    def _att_block(self, src: torch.Tensor):
        batch_size, seq_len, _ = src.shape
        mixed_qkv = self.mixed_qkv(src)
        xq, xk, xv = mixed_qkv.chunk(3, -1)
        # Reshape for rotary embeddings
        xq = xq.view(batch_size, seq_len, self.n_heads, self.d_head)
        xk = xk.view(batch_size, seq_len, self.n_heads, self.d_head)
        xv = xv.view(batch_size, seq_len, self.n_heads, self.d_head).transpose(1, 2)
        xq, xk = self.rotate(xq, xk)
        att_dropout = self.drop_p if self.training else 0.0
        att = F.scaled_dot_product_attention(xq, xk, xv, dropout_p=att_dropout, is_causal=True)
        out = att.transpose(1, 2).contiguous()
        return self.att_proj_linear(out.view(batch_size, seq_len, self.n_heads * self.d_head))


def broken() -> nn.Module:
    class FusedEncoderBlock(_FusedEncoderBlockBase):
        def rotate(self, xq, xk):
            cos, sin = self.rotary_emb(xq)
            xq, xk = apply_rotary_pos_emb(xq, xk, cos, sin)
            return xq.transpose(1, 2), xk.transpose(1, 2)

    torch.manual_seed(0)
    return FusedEncoderBlock(32, 4)


def fixed() -> nn.Module:
    class FusedEncoderBlock(_FusedEncoderBlockBase):
        def rotate(self, xq, xk):
            xq, xk = xq.transpose(1, 2), xk.transpose(1, 2)
            cos, sin = self.rotary_emb(xq)
            return apply_rotary_pos_emb(xq, xk, cos, sin)

    torch.manual_seed(0)
    return FusedEncoderBlock(32, 4)


def example():
    g = torch.Generator().manual_seed(23)
    return (torch.randn(2, 10, 32, generator=g),), {}
