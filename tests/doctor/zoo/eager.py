"""Attention as model libraries write it: additive masks made outside, weights on request, einops, logits of a port."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import Tensor, nn


class BertSelfAttention(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int, attention_probs_dropout_prob: float = 0.1):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.all_head_size = num_attention_heads * self.attention_head_size
        self.query = nn.Linear(hidden_size, self.all_head_size)
        self.key = nn.Linear(hidden_size, self.all_head_size)
        self.value = nn.Linear(hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool = False):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            # Apply the attention mask (precomputed for all layers: 0 to attend, the lowest float to ignore)
            attention_scores = attention_scores + attention_mask
        attention_probs = self.dropout(nn.functional.softmax(attention_scores, dim=-1))
        context_layer = torch.matmul(attention_probs, value_layer).permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(*context_layer.size()[:-2], self.all_head_size)
        return (context_layer, attention_probs) if output_attentions else (context_layer,)


class EagerAttention(nn.Module):
    """The weights come back beside the output."""

    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """attention_mask: [batch, seq], 1 for tokens to attend to."""
        b, n, d = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        attn_weights = torch.matmul(q, k.transpose(2, 3)) * self.head_dim**-0.5
        if attention_mask is not None:
            dropped = attention_mask[:, None, None, :] == 0
            attn_weights = attn_weights.masked_fill(dropped, torch.finfo(attn_weights.dtype).min)
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_output = torch.matmul(attn_weights, v).transpose(1, 2).reshape(b, n, d)
        return self.out_proj(attn_output), attn_weights.mean(dim=1)


class PaddedEncoderAttention(nn.Module):
    """attention_mask: [batch, seq], 1 for tokens and 0 for padding."""

    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        b, n, d = hidden_states.shape
        q, k, v = (
            proj(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = torch.matmul(q, k.transpose(2, 3)) * self.head_dim**-0.5
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, :, None] == 0, -1e4)
        probs = scores.softmax(dim=-1)
        return self.out_proj(torch.matmul(probs, v).transpose(1, 2).reshape(b, n, d))


class DeviceAttention(nn.Module):
    """mask: [batch, seq], 1 for tokens and 0 for padding. Made to run under model.half()."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * (c // self.num_heads) ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            attn = attn.masked_fill(mask[:, None, None, :] == 0, -1e20)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class FastViTAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = q @ k.transpose(-2, -1) / math.sqrt(c // self.num_heads)
        attn = torch.softmax(attn.to(torch.float16), dim=-1).to(v.dtype)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=12, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        x = self.norm(x)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = self.dropout(self.attend(dots))
        out = rearrange(torch.matmul(attn, v), "b h n d -> b n (h d)")
        return self.to_out(out)


class ViTAttention(nn.Module):
    def __init__(self, dim, heads=4, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.scale = dim**-0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def forward(self, x, mask=None):
        """mask: bool [b, n], True = attend"""
        q, k, v = rearrange(self.to_qkv(x), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.heads)
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is not None:
            dots.masked_fill_(~rearrange(mask, "b j -> b 1 1 j"), -torch.finfo(dots.dtype).max)
        attn = dots.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class LatentQueries(nn.Module):
    """x attends to context. mask: bool [b, n of the context], True = attend"""

    def __init__(self, query_dim, context_dim=None, heads=4, dim_head=16):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = query_dim if context_dim is None else context_dim
        self.qk_head_dim = dim_head
        self.scale = dim_head**-0.5
        self.heads = heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context=None, mask=None):
        h = self.heads
        k, v = self.to_kv(x if context is None else context).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=h) for t in (self.to_q(x), k, v))
        sim = torch.einsum("bid,bjd->bij", q, k) / self.scale
        if mask is not None:
            mask = mask.repeat_interleave(h, dim=0).unsqueeze(1)
            sim.masked_fill_(~mask, -torch.finfo(sim.dtype).max)
        out = torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v)
        return self.to_out(rearrange(out, "(b h) n d -> b n (h d)", h=h))


def scaled_dot_product_attention(q, k, v, mask=None):
    """Calculate the attention weights.

    mask: float, shape broadcastable to (..., seq_len_q, seq_len_k); 1 marks what must not be seen.
    """
    matmul_qk = torch.matmul(q, k.transpose(-2, -1))
    scaled_attention_logits = matmul_qk / math.sqrt(k.shape[-1])
    if mask is not None:
        scaled_attention_logits = scaled_attention_logits + mask * -1e9
    attention_weights = torch.softmax(scaled_attention_logits, dim=-1)
    return torch.matmul(attention_weights, v), attention_weights


class MultiHeadAttention(nn.Module):
    """forward(v, k, q, mask) -> output, attention_weights. The mask is 1 where a position is hidden, 0 elsewhere."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.d_model = d_model
        assert d_model % self.num_heads == 0
        self.depth = d_model // self.num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def split_heads(self, x, batch_size):
        return x.reshape(batch_size, -1, self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, v, k, q, mask=None):
        batch_size = q.shape[0]
        q = self.split_heads(self.wq(q), batch_size)
        k = self.split_heads(self.wk(k), batch_size)
        v = self.split_heads(self.wv(v), batch_size)
        scaled_attention, attention_weights = scaled_dot_product_attention(q, k, v, mask)
        concat_attention = scaled_attention.permute(0, 2, 1, 3).reshape(batch_size, -1, self.d_model)
        return self.dense(concat_attention), attention_weights


class LayerAttention(nn.Module):
    """inputs: query, key, value; mask [batch, 1, 1, keys]: 1 for the tokens to keep, 0 for padding"""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.depth = num_heads, d_model // num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def split_heads(self, x):
        return x.reshape(x.shape[0], -1, self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.split_heads(self.wq(query)), self.split_heads(self.wk(key)), self.split_heads(self.wv(value))
        logits = q @ k.transpose(-2, -1) / math.sqrt(self.depth)
        if mask is not None:
            logits += mask * -1e9
        out = torch.softmax(logits, dim=-1) @ v
        return self.dense(out.permute(0, 2, 1, 3).flatten(2))
