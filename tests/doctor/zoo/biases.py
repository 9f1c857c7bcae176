"""Biases on the scores: ALiBi, T5's buckets, relative positions, a softcap."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def get_slopes(n: int) -> list[float]:
    def power_of_2(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class ALiBiAttention(nn.Module):
    """Causal attention with linear biases (Press et al. 2022)."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.register_buffer("slopes", torch.tensor(get_slopes(heads)).view(heads, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(n, device=x.device)
        bias = -self.slopes * (i[:, None] - i[None, :]).abs()
        bias = bias.masked_fill(i[None, :] > i[:, None], float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class AlibiSelfAttention(nn.Module):
    """Attention with linear biases, ALiBi."""

    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        slopes = [2 ** (-8 * (i + 1) / num_heads) for i in range(num_heads)]
        self.register_buffer("alibi_slopes", torch.tensor(slopes), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q = self.query(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.key(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.value(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        position = torch.arange(n, device=x.device)
        alibi = self.alibi_slopes[:, None, None] * (position[None, :] - position[:, None])
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim) + alibi
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        context = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.dense(context.transpose(1, 2).reshape(b, n, d))


def relative_position_bucket(relative_position: Tensor, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    num_buckets //= 2
    buckets = (relative_position > 0).long() * num_buckets
    distance = relative_position.abs()
    max_exact = num_buckets // 2
    large = max_exact + (
        torch.log(distance.float().clamp(min=1) / max_exact)
        / math.log(max_distance / max_exact)
        * (num_buckets - max_exact)
    ).long().clamp(max=num_buckets - 1 - max_exact)
    return buckets + torch.where(distance < max_exact, distance, large)


class T5SelfAttention(nn.Module):
    """T5 self-attention with relative position buckets."""

    def __init__(self, d_model: int, num_heads: int, d_kv: int):
        super().__init__()
        self.n_heads, self.key_value_proj_dim = num_heads, d_kv
        inner_dim = num_heads * d_kv
        self.q = nn.Linear(d_model, inner_dim, bias=False)
        self.k = nn.Linear(d_model, inner_dim, bias=False)
        self.v = nn.Linear(d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(32, num_heads)

    def compute_bias(self, query_length: int, key_length: int) -> Tensor:
        device = self.relative_attention_bias.weight.device
        context = torch.arange(query_length, device=device)[:, None]
        memory = torch.arange(key_length, device=device)[None, :]
        return self.relative_attention_bias(relative_position_bucket(memory - context)).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: additive, [batch, 1, 1, key_length]: 0 for tokens, the smallest float for padding."""
        b, n, _ = hidden_states.shape
        q = self.q(hidden_states).view(b, n, self.n_heads, -1).transpose(1, 2)
        k = self.k(hidden_states).view(b, n, self.n_heads, -1).transpose(1, 2)
        v = self.v(hidden_states).view(b, n, self.n_heads, -1).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(3, 2))
        position_bias = self.compute_bias(n, n)
        if mask is not None:
            position_bias = position_bias + mask
        scores = scores + position_bias
        attn_weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        return self.o(torch.matmul(attn_weights, v).transpose(1, 2).reshape(b, n, -1))


class T5Attention(nn.Module):
    """Attention of a T5 encoder block (Raffel et al. 2020)."""

    def __init__(self, d_model: int, num_heads: int, d_kv: int):
        super().__init__()
        self.n_heads, self.d_kv = num_heads, d_kv
        self.q = nn.Linear(d_model, num_heads * d_kv, bias=False)
        self.k = nn.Linear(d_model, num_heads * d_kv, bias=False)
        self.v = nn.Linear(d_model, num_heads * d_kv, bias=False)
        self.o = nn.Linear(num_heads * d_kv, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(32, num_heads)

    def forward(self, hidden_states: Tensor) -> Tensor:
        b, n, _ = hidden_states.shape
        q, k, v = (
            p(hidden_states).view(b, n, self.n_heads, self.d_kv).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        i = torch.arange(n, device=hidden_states.device)
        bias = self.relative_attention_bias(relative_position_bucket(i[None, :] - i[:, None])).permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


class WindowBiasAttention(nn.Module):
    """Attention within a window of a picture, with a learned bias for every offset (Swin). x: [windows, tokens, dim]"""

    def __init__(self, dim: int, window_size: int, num_heads: int):
        super().__init__()
        self.window_size, self.num_heads = window_size, num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window_size - 1), num_heads))
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        i = torch.arange(n, device=x.device)
        offset = (i[:, None] - i[None, :]).clamp(1 - self.window_size, self.window_size - 1) + self.window_size - 1
        attn = attn + self.relative_position_bias_table[offset].permute(2, 0, 1)
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c))


class SoftcapAttention(nn.Module):
    """Scores are held within ±attn_logit_softcapping, and scaled by query_pre_attn_scalar ** -0.5 (Gemma 2)."""

    def __init__(
        self, hidden_size: int, num_heads: int, head_dim: int, query_pre_attn_scalar: float, softcap: float = 5.0
    ):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.scaling = query_pre_attn_scalar**-0.5
        self.attn_logit_softcapping = softcap
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        b, n, _ = hidden_states.shape
        shape = (b, n, self.num_heads, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(2, 3) * self.scaling
        scores = torch.tanh(scores / self.attn_logit_softcapping) * self.attn_logit_softcapping
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))
