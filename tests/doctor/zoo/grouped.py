"""Fewer key heads than query heads, and projections that are packed into one matrix in several layouts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def repeat_kv(x: Tensor, n_rep: int) -> Tensor:
    """[batch, kv heads, seq, head_dim] -> [batch, heads, seq, head_dim]"""
    bs, n_kv_heads, slen, head_dim = x.shape
    if n_rep == 1:
        return x
    return x[:, :, None].expand(bs, n_kv_heads, n_rep, slen, head_dim).reshape(bs, n_kv_heads * n_rep, slen, head_dim)


def expand_kv(x: Tensor, groups: int) -> Tensor:
    b, g, n, d = x.shape
    return x.unsqueeze(1).expand(b, groups, g, n, d).reshape(b, g * groups, n, d)


class GroupedQueryAttention(nn.Module):
    def __init__(self, dim: int, n_heads: int, n_kv_heads: int):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: additive, 0 or -inf, [seq, seq] or [batch, 1, seq, seq]."""
        b, n, _ = x.shape
        q = self.wq(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2)
        k, v = repeat_kv(k, self.n_heads // self.n_kv_heads), repeat_kv(v, self.n_heads // self.n_kv_heads)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(q)
        return self.wo((scores @ v).transpose(1, 2).contiguous().view(b, n, -1))


class GQA(nn.Module):
    def __init__(self, dim: int, n_heads: int, n_kv_heads: int):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.q_proj = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        n_rep = self.n_heads // self.n_kv_heads
        q = self.q_proj(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2).repeat(1, n_rep, 1, 1)
        v = self.v_proj(x).view(b, n, self.n_kv_heads, -1).transpose(1, 2).repeat(1, n_rep, 1, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1))


class GroupedAttention(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int, num_key_value_heads: int):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        self.q_proj = nn.Linear(hidden_size, num_attention_heads * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim)
        self.o_proj = nn.Linear(num_attention_heads * self.head_dim, hidden_size)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        b, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, n, self.num_key_value_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, n, self.num_key_value_heads, self.head_dim).transpose(1, 2)
        groups = self.num_heads // self.num_key_value_heads
        k, v = expand_kv(k, groups), expand_kv(v, groups)
        attn_weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)) * self.head_dim**-0.5, dim=-1)
        out = torch.matmul(attn_weights, v).transpose(1, 2).contiguous()
        return self.o_proj(out.view(b, n, -1)), attn_weights


class GroupedEinsumAttention(nn.Module):
    """Query heads in groups that share a key head, without repeating the keys."""

    def __init__(self, dim: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        head_dim = dim // heads
        self.scale = head_dim**-0.5
        self.to_q = nn.Linear(dim, heads * head_dim)
        self.to_kv = nn.Linear(dim, 2 * kv_heads * head_dim)
        self.to_out = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        b, n, _ = x.shape
        q = self.to_q(x).view(b, n, self.kv_heads, self.heads // self.kv_heads, -1)
        k, v = (t.view(b, n, self.kv_heads, -1) for t in self.to_kv(x).chunk(2, dim=-1))
        dots = torch.einsum("bigrd,bjgd->bgrij", q, k) * self.scale
        if causal:
            future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            dots = dots.masked_fill(future, -torch.finfo(dots.dtype).max)
        out = torch.einsum("bgrij,bjgd->bigrd", dots.softmax(dim=-1), v)
        return self.to_out(out.reshape(b, n, -1))


class MultiQueryAttention(nn.Module):
    """One key head for all query heads (Shazeer 2019)."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.Wqkv = nn.Linear(d_model, d_model + 2 * self.d_head)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        query, key, value = self.Wqkv(x).split([d, self.d_head, self.d_head], dim=2)
        query = query.view(b, s, self.n_heads, self.d_head).transpose(1, 2)
        attn = torch.matmul(query, key.unsqueeze(1).transpose(-1, -2)).div(math.sqrt(self.d_head))
        out = torch.matmul(attn.softmax(-1), value.unsqueeze(1))
        return self.out_proj(out.transpose(1, 2).reshape(b, s, d))


class FusedAttention(nn.Module):
    def __init__(self, dim, num_heads=4, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        k, q, v = qkv.unbind(0)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class QKVAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.c_qkv = nn.Linear(width, width * 3)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, v, k = self.c_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class InterleavedQKVAttention(nn.Module):
    """The query, key and value of a head lie side by side in the projection, head after head, as in GPT-NeoX."""

    def __init__(self, input_dim: int, embed_dim: int, num_heads: int):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, input_dim)

    def forward(self, x: Tensor, mask: Tensor | None = None, return_attention: bool = False):
        batch_size, seq_length, _ = x.size()
        qkv = self.qkv_proj(x).reshape(batch_size, seq_length, self.num_heads, 3 * self.head_dim)
        q, k, v = qkv.permute(0, 2, 1, 3).chunk(3, dim=-1)
        attn_logits = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if mask is not None:
            if mask.ndim == 3:
                mask = mask.unsqueeze(1)
            attn_logits = attn_logits.masked_fill(mask == 0, -9e15)
        attention = F.softmax(attn_logits, dim=-1)
        values = torch.matmul(attention, v).permute(0, 2, 1, 3).reshape(batch_size, seq_length, self.embed_dim)
        o = self.o_proj(values)
        return (o, attention) if return_attention else o


class NormedAttention(nn.Module):
    """Queries and keys of length one, and a learned temperature for each head in place of 1/sqrt(d) (Swin V2)."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))
