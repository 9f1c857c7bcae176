"""Attention by F.scaled_dot_product_attention: fused projections, causal, padding, windows, packed rows, a cache."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        assert n_embd % n_head == 0
        # key, query, value projections for all heads, but in a batch
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)
        self.n_head = n_head
        self.n_embd = n_embd
        self.dropout = dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        p = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class GPTAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, dropout: float = 0.1):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        self.dropout = dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class PaddedSelfAttention(nn.Module):
    """Bidirectional self-attention.

    Args:
        x: [batch, seq, dim]
        key_padding_mask: bool [batch, seq], True where the token is padding
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attn_mask = None
        if key_padding_mask is not None:
            attn_mask = key_padding_mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out(y.transpose(1, 2).flatten(2))


class EncoderSelfAttention(nn.Module):
    """Self-attention over a padded batch; `pad_mask` is a bool [B, L], True at the pad tokens."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        allowed = None if pad_mask is None else ~pad_mask.view(b, 1, 1, n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class MaskedSelfAttention(nn.Module):
    def __init__(self, hidden: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.o_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: [batch, query, key] with 1 for the pairs that may attend and 0 for the others."""
        shape = (*x.shape[:-1], self.num_heads, -1)
        q = self.q_proj(x).view(shape).transpose(1, 2)
        k = self.k_proj(x).view(shape).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        if mask is not None:
            mask = mask.unsqueeze(1).to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(x.shape))


class DecoderAttention(nn.Module):
    """Causal attention that can go on from the keys and values of earlier calls."""

    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.wqkv = nn.Linear(dim, dim * 3, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.n_heads, -1).transpose(1, 2) for z in self.wqkv(x).split(d, dim=-1))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, d)), (k, v)


class StepAttention(nn.Module):
    """Causal attention with a cache: pass what the last call returned as `cache`."""

    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.wqkv = nn.Linear(dim, dim * 3, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.n_heads, -1).transpose(1, 2) for z in self.wqkv(x).split(d, dim=-1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        seen = k.size(2) - t
        allowed = torch.ones(t, seen + t, dtype=torch.bool, device=x.device).tril(seen)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.wo(y.transpose(1, 2).reshape(b, t, d)), (k, v)


class LocalAttention(nn.Module):
    """Causal attention within a window: each token attends to the last `window` tokens, itself included."""

    def __init__(self, dim: int, num_heads: int, window: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(n, device=x.device)
        distance = i[:, None] - i[None, :]
        mask = (distance >= 0) & (distance <= self.window + 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))


class SlidingWindowAttention(nn.Module):
    """Mistral's window: a token sees `sliding_window` tokens, of which it is the last."""

    def __init__(self, dim: int, num_heads: int, sliding_window: int = 3):
        super().__init__()
        self.num_heads = num_heads
        self.sliding_window = sliding_window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        ones = torch.ones(n, n, dtype=torch.bool, device=x.device)
        mask = ones.tril() & ones.triu(1 - self.sliding_window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))


class PackedDocumentAttention(nn.Module):
    """Causal attention over rows that hold several documents.

    segment_ids [batch, seq] says which document a token is of; tokens of one document attend to that document only.
    """

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, segment_ids: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        allowed = same.tril().unsqueeze(1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))


class PackedSequenceAttention(nn.Module):
    """Causal attention for packed rows: document_ids [batch, seq]; positions start again in every document."""

    def __init__(self, dim: int, num_heads: int, max_len: int = 256):
        super().__init__()
        self.num_heads = num_heads
        self.wpe = nn.Embedding(max_len, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, document_ids: Tensor) -> Tensor:
        b, n, c = x.shape
        same = document_ids[:, :, None] == document_ids[:, None, :]
        position_ids = same.tril(-1).sum(-1)
        x = x + self.wpe(position_ids)
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))


class ExplainableAttention(nn.Module):
    """attention_mask: [batch, seq], 1 for real tokens, 0 for padding. With need_weights the weights come back, too."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, need_weights: bool = True):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1))
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        if need_weights:
            weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
            y = weights @ v
        else:
            weights = None
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).flatten(2)), weights


class ContextAttention(nn.Module):
    """Cross attention. context_mask: bool [batch, context length], True = take part."""

    def __init__(self, dim: int, context_dim: int, heads: int = 4, dim_head: int = 12):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_k = nn.Linear(context_dim, heads * dim_head, bias=False)
        self.to_v = nn.Linear(context_dim, heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x: Tensor, context: Tensor, context_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        if context_mask is not None:
            context_mask = context_mask[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=context_mask)
        return self.to_out(out.transpose(1, 2).flatten(2))
