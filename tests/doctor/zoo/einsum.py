"""Attention written with einsum: a small projection that all heads share, whole projections, raw weight tensors."""

# ruff: noqa: UP008
from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import einsum, nn


class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super(SelfAttention, self).__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads

        assert self.head_dim * heads == embed_size, "Embedding size needs to be divisible by heads"

        self.values = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.keys = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.queries = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.fc_out = nn.Linear(heads * self.head_dim, embed_size)

    def forward(self, values, keys, query, mask):
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]

        # split the embedding into self.heads pieces
        values = values.reshape(N, value_len, self.heads, self.head_dim)
        keys = keys.reshape(N, key_len, self.heads, self.head_dim)
        queries = query.reshape(N, query_len, self.heads, self.head_dim)

        values = self.values(values)
        keys = self.keys(keys)
        queries = self.queries(queries)

        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))

        attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)

        out = torch.einsum("nhql,nlhd->nqhd", [attention, values])
        out = out.reshape(N, query_len, self.heads * self.head_dim)
        return self.fc_out(out)


class SharedProjectionAttention(nn.Module):
    """Every head uses the same three small matrices.

    mask: [N, 1, query_len, key_len] or [N, 1, 1, key_len], 1 = attend, 0 = do not.
    """

    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = embed_size // heads
        self.to_values = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.to_keys = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.to_queries = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask=None):
        n, q_len = query.size(0), query.size(1)
        k_len = keys.size(1)
        v = self.to_values(values.view(n, k_len, self.heads, self.head_dim))
        k = self.to_keys(keys.view(n, k_len, self.heads, self.head_dim))
        q = self.to_queries(query.view(n, q_len, self.heads, self.head_dim))
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        weights = torch.softmax(energy / self.head_dim**0.5, dim=3)
        out = torch.einsum("nhqk,nkhd->nqhd", weights, v).flatten(2)
        return self.fc_out(out)


class Attention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask=None):
        N, query_len, _ = query.shape
        values = self.values(values).reshape(N, -1, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(N, -1, self.heads, self.head_dim)
        queries = self.queries(query).reshape(N, -1, self.heads, self.head_dim)

        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            # mask is (N, 1, 1, key_len): 0 where the token is <pad>
            energy = energy.masked_fill(mask == 0, -1e20)
        attention = torch.softmax(energy / math.sqrt(self.head_dim), dim=2)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(N, query_len, -1)
        return self.fc_out(out)


class TensorAttention(nn.Module):
    """Multi-head attention on raw weight tensors, one slice per head."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        d_head = d_model // n_heads
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, d_head) * d_model**-0.5)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, d_head) * d_model**-0.5)
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, d_head) * d_model**-0.5)
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) * d_model**-0.5)
        self.b_Q = nn.Parameter(torch.randn(n_heads, d_head) * 0.1)
        self.b_O = nn.Parameter(torch.zeros(d_model))
        self.d_head = d_head

    def forward(self, x):
        q = einsum("bqm,hmd->bqhd", x, self.W_Q) + self.b_Q
        k = einsum("bkm,hmd->bkhd", x, self.W_K)
        v = einsum("bkm,hmd->bkhd", x, self.W_V)
        scores = einsum("bqhd,bkhd->bhqk", q, k) / self.d_head**0.5
        pattern = scores.softmax(-1)
        z = einsum("bhqk,bkhd->bqhd", pattern, v)
        return einsum("bqhd,hdm->bqm", z, self.W_O) + self.b_O


class CausalTensorAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        d_head = d_model // n_heads
        self.W_Q = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_V = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_O = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        for w in (self.W_Q, self.W_K, self.W_V, self.W_O):
            nn.init.normal_(w, std=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal: position q sees positions 0 .. q."""
        q = einsum("bqm,hmd->bhqd", x, self.W_Q)
        k = einsum("bkm,hmd->bhkd", x, self.W_K)
        v = einsum("bkm,hmd->bhkd", x, self.W_V)
        attn_scores = einsum("bhqd,bhkd->bhqk", q, k)
        n = x.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), diagonal=1)
        attn_scores = attn_scores.masked_fill(mask, -torch.inf)
        z = einsum("bhqk,bhkd->bhqd", attn_scores.softmax(-1), v)
        return einsum("bhqd,hdm->bqm", z, self.W_O)


class SpatialAttention(nn.Module):
    """Attention over the positions of a feature map, flattened to [batch, positions, channels], with a residual."""

    def __init__(self, n_channels: int, n_heads: int = 1, d_k: int | None = None):
        super().__init__()
        if d_k is None:
            d_k = n_channels
        self.projection = nn.Linear(n_channels, n_heads * d_k * 3)
        self.output = nn.Linear(n_heads * d_k, n_channels)
        self.scale = d_k**-0.5
        self.n_heads = n_heads
        self.d_k = d_k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch_size = x.shape[0]
        qkv = self.projection(x).view(batch_size, -1, self.n_heads, 3 * self.d_k)
        q, k, v = torch.chunk(qkv, 3, dim=-1)
        attn = torch.einsum("bihd,bjhd->bijh", q, k) * self.scale
        attn = attn.softmax(dim=1)
        res = torch.einsum("bijh,bjhd->bihd", attn, v)
        res = res.reshape(batch_size, -1, self.n_heads * self.d_k)
        return self.output(res) + x


class EinsumSelfAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (w(x).reshape(b, n, self.num_heads, -1) for w in (self.wq, self.wk, self.wv))
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        attn = F.softmax(sim, dim=-1)
        out = torch.einsum("bhij,bihd->bjhd", attn, v)
        return self.wo(out.reshape(b, n, c))


class ContextEinsumAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        b, n, c = x.shape
        h = self.num_heads
        q = self.q(x).view(b, n, h, c // h)
        k, v = self.kv(context).view(b, -1, 2, h, c // h).unbind(2)
        scores = torch.einsum("bnhd,bmhd->bnhm", q, k) / math.sqrt(c // h)
        probs = torch.softmax(scores, dim=2)
        return self.proj(torch.einsum("bnhm,bmhd->bnhd", probs, v).reshape(b, n, c))
