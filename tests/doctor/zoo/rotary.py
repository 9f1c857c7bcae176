"""Rotary positions: half-split and complex, with a cache, with YaRN, and learned positions for padded prompts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rotate_every_two(x):
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def rope_tables(n: int, dim: int, start: int = 0, base: float = 10000.0, device=None) -> tuple[Tensor, Tensor]:
    inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, device=device).float() / dim))
    t = torch.arange(start, start + n, device=device).float()
    emb = torch.outer(t, inv_freq).repeat(1, 2)
    return emb.cos(), emb.sin()


def apply_rotary_pos_emb(q, k, cos, sin):
    cos, sin = cos.to(q.dtype), sin.to(q.dtype)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    return torch.polar(torch.ones(end, dim // 2), torch.outer(torch.arange(end).float(), freqs))


def apply_rotary_emb(x: Tensor, freqs_cis: Tensor) -> Tensor:
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis).flatten(-2).type_as(x)


class LlamaAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, rope_theta: float = 10000.0):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.rope_theta = rope_theta
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        b, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        cos, sin = rope_tables(n, self.head_dim, base=self.rope_theta, device=q.device)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        groups = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1))


class ComplexRotaryAttention(nn.Module):
    """Causal; rotates neighbouring pairs as complex numbers."""

    def __init__(self, dim: int, n_heads: int, max_seq_len: int = 128):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.freqs_cis = precompute_freqs_cis(self.head_dim, max_seq_len)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        xq = self.wq(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        xk = self.wk(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        xv = self.wv(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        xq, xk = apply_rotary_emb(xq, self.freqs_cis[:n]), apply_rotary_emb(xk, self.freqs_cis[:n])
        scores = xq @ xk.transpose(2, 3) / math.sqrt(self.head_dim)
        scores = scores + torch.full((n, n), float("-inf"), device=x.device, dtype=scores.dtype).triu(1)
        output = F.softmax(scores.float(), dim=-1).type_as(xq) @ xv
        return self.wo(output.transpose(1, 2).reshape(b, n, -1))


class RotaryAttention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        cos, sin = (t.to(q.dtype) for t in rope_tables(x.shape[1], self.dim_head, device=x.device))
        q = q * cos + rotate_every_two(q) * sin
        k = k * cos + rotate_every_two(k) * sin
        y = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(y.transpose(1, 2).flatten(2))


class RoPESelfAttention(nn.Module):
    """Self-attention with rotary position embedding (Su et al. 2021)."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def rope(self, x: Tensor) -> Tensor:
        cos, sin = (t.to(x.dtype) for t in rope_tables(x.shape[-2], self.head_dim, device=x.device))
        return x * cos + rotate_half(x) * sin

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q = self.rope(self.q(x).view(b, n, self.heads, self.head_dim).transpose(1, 2))
        k = self.k(x).view(b, n, self.heads, self.head_dim).transpose(1, 2)
        v = self.v(x).view(b, n, self.heads, self.head_dim).transpose(1, 2)
        attn = (q @ k.transpose(-1, -2) / self.head_dim**0.5).softmax(-1)
        return self.o((attn @ v).transpose(1, 2).reshape(b, n, d))


class RotaryQKVAttention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        qkv = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        cos, sin = (t.to(qkv.dtype) for t in rope_tables(n, d // self.heads, device=x.device))
        qkv = qkv * cos + rotate_half(qkv) * sin
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class RotaryEmbedding(nn.Module):
    def __init__(self, dim: int, base: float = 10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.arange(x.shape[-2], device=x.device, dtype=self.inv_freq.dtype)
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


class LongContextAttention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.rotary_emb = RotaryEmbedding(dim // heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *self.rotary_emb(q))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class GeneratorAttention(nn.Module):
    """Causal attention with rotary positions and a cache of earlier keys and values."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, past_key_value: tuple[Tensor, Tensor] | None = None, use_cache: bool = False):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, self.head_dim).transpose(1, 2) for t in self.wqkv(x).chunk(3, dim=-1))
        past = 0 if past_key_value is None else past_key_value[0].shape[2]
        cos, sin = rope_tables(n, self.head_dim, start=past, device=x.device)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        scores = q @ k.transpose(2, 3) * self.head_dim**-0.5
        future = torch.ones(n, past + n, dtype=torch.bool, device=x.device).triu(past + 1)
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
        out = self.wo((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
        return (out, (k, v)) if use_cache else out


class CachedRotaryAttention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, past_key_value: tuple[Tensor, Tensor] | None = None):
        b, n, d = x.shape
        q = self.q_proj(x).view(b, n, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.heads, self.head_dim).transpose(1, 2)
        past = 0 if past_key_value is None else past_key_value[0].shape[2]
        cos, sin = rope_tables(n, self.head_dim, device=x.device)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        allowed = torch.ones(n, past + n, dtype=torch.bool, device=x.device).tril(past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, d)), (k, v)


class StretchedAttention(nn.Module):
    """Rotary positions whose base grows with the length once it is past max_positions (NTK), and a cache."""

    def __init__(self, dim: int, heads: int, max_positions: int = 8):
        super().__init__()
        self.heads, self.head_dim, self.max_positions = heads, dim // heads, max_positions
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def base(self, seen: int) -> float:
        stretch = max(seen / self.max_positions, 1.0)
        return 10000.0 * stretch ** (self.head_dim / (self.head_dim - 2))

    def forward(self, x: Tensor, past_key_value: tuple[Tensor, Tensor] | None = None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        past = 0 if past_key_value is None else past_key_value[0].shape[2]
        base = self.base(past + n)
        q, k = apply_rotary_pos_emb(q, k, *rope_tables(n, self.head_dim, past, base, device=x.device))
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        allowed = torch.ones(n, past + n, dtype=torch.bool, device=x.device).tril(past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.proj(y.transpose(1, 2).reshape(b, n, d)), (k, v)


class PromptAttention(nn.Module):
    """Causal self-attention for generation. Prompts of different lengths are padded on the left.

    attention_mask: [batch, seq], 1 for real tokens and 0 for padding.
    """

    def __init__(self, dim: int, heads: int, max_positions: int = 128):
        super().__init__()
        self.heads = heads
        self.wpe = nn.Embedding(max_positions, dim)
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        if attention_mask is None:
            attention_mask = torch.ones(b, n, dtype=torch.long, device=x.device)
        position_ids = torch.arange(n, device=x.device).expand(b, n)
        x = x + self.wpe(position_ids)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(d, dim=-1))
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril() & attention_mask[:, None, None, :].bool()
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))
