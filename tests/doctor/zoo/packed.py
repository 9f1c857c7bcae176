"""Heads packed into the batch for torch.bmm, sequence-first tensors, and lengths in place of masks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class SeqFirstAttention(nn.Module):
    """Input shape: Time x Batch x Channel. key_padding_mask: [batch, src_len], True (1) where the key is padding.

    attn_mask: [tgt_len, src_len], added to the scores.
    """

    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        tgt_len, bsz, embed_dim = query.size()
        q = self.q_proj(query) * self.scaling
        k, v = self.k_proj(key), self.v_proj(value)
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        src_len = k.size(1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            attn_weights = attn_weights + attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            attn_weights = attn_weights.masked_fill(key_padding_mask[:, None, None, :].to(torch.bool), float("-inf"))
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)
        attn_probs = F.dropout(F.softmax(attn_weights, dim=-1), p=self.dropout, training=self.training)
        attn = torch.bmm(attn_probs, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn)


class BatchFirstAttention(nn.Module):
    """Input shape: Batch x Time x Channel."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        bsz, seq_len, embed_dim = x.size()
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.contiguous().view(seq_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(seq_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(seq_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        attn = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.head_dim)
        out = torch.bmm(attn.softmax(dim=-1), v)
        out = out.transpose(0, 1).contiguous().view(bsz, seq_len, embed_dim)
        return self.out_proj(out)


class BartAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _shape(self, tensor, seq_len, bsz):
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: float [batch, 1, tgt_len, src_len], 0 to keep and a large negative number to drop."""
        bsz, n, _ = hidden_states.size()
        query_states = self.q_proj(hidden_states) * self.scaling
        shape = (bsz * self.num_heads, -1, self.head_dim)
        query_states = self._shape(query_states, n, bsz).view(*shape)
        key_states = self._shape(self.k_proj(hidden_states), n, bsz).view(*shape)
        value_states = self._shape(self.v_proj(hidden_states), n, bsz).view(*shape)
        scores = torch.bmm(query_states, key_states.transpose(1, 2)) * self.scaling
        if attention_mask is not None:
            scores = scores.view(bsz, self.num_heads, n, n) + attention_mask
            scores = scores.view(bsz * self.num_heads, n, n)
        out = torch.bmm(F.softmax(scores, dim=-1), value_states)
        out = out.view(bsz, self.num_heads, n, self.head_dim).transpose(1, 2)
        return self.out_proj(out.reshape(bsz, n, -1))


class SplitHeadsAttention(nn.Module):
    """mask: [batch, len_q, len_k], 1 = may attend."""

    def __init__(self, n_head: int, d_model: int):
        super().__init__()
        self.n_head = n_head
        self.Q = nn.Linear(d_model, d_model)
        self.K = nn.Linear(d_model, d_model)
        self.V = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        q = torch.cat(self.Q(queries).chunk(self.n_head, dim=2), dim=0)  # (h*N, T_q, d_model/h)
        k = torch.cat(self.K(keys).chunk(self.n_head, dim=2), dim=0)
        v = torch.cat(self.V(values).chunk(self.n_head, dim=2), dim=0)
        scores = torch.bmm(q, k.transpose(1, 2)) / k.size(-1) ** 0.5
        if mask is not None:
            mask = mask.repeat_interleave(self.n_head, dim=0)
            scores = scores.masked_fill(mask == 0, -(2.0**32) + 1)
        out = torch.bmm(torch.softmax(scores, dim=-1), v)
        return self.dense(torch.cat(out.chunk(self.n_head, dim=0), dim=2))


class PackedHeadsAttention(nn.Module):
    """mask: bool [batch, keys], True for the words, False for what only fills the row."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        h = self.num_heads
        q, k, v = (
            t.reshape(b, n, h, d // h).transpose(1, 2).reshape(b * h, n, d // h) for t in self.to_qkv(x).chunk(3, -1)
        )
        sim = torch.einsum("bid,bjd->bij", q, k) * (d // h) ** -0.5
        if mask is not None:
            sim = sim.masked_fill(~mask.repeat(h, 1)[:, None, :], -torch.finfo(sim.dtype).max)
        out = torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v)
        return self.to_out(out.reshape(b, h, n, d // h).transpose(1, 2).reshape(b, n, d))


def sequence_mask(x: Tensor, valid_len: Tensor, value: float = 0.0) -> Tensor:
    keep = torch.arange(x.size(1), device=x.device)[None, :] < valid_len[:, None]
    return x.masked_fill(~keep, value)


def masked_softmax(x: Tensor, valid_lens: Tensor | None) -> Tensor:
    """Softmax over the last axis; what stands behind the valid length gets no weight."""
    if valid_lens is None:
        return F.softmax(x, dim=-1)
    shape = x.shape
    valid_lens = valid_lens.repeat_interleave(shape[1]) if valid_lens.dim() == 1 else valid_lens.reshape(-1)
    return F.softmax(sequence_mask(x.reshape(-1, shape[-1]), valid_lens, -1e6).reshape(shape), dim=-1)


class LengthAttention(nn.Module):
    """Queries, keys, values and, where rows are padded, how many keys of each row are valid."""

    def __init__(self, num_hiddens: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=False)

    def transpose_qkv(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], x.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)
        return x.reshape(-1, x.shape[2], x.shape[3])

    def transpose_output(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, self.num_heads, x.shape[1], x.shape[2]).permute(0, 2, 1, 3)
        return x.reshape(x.shape[0], x.shape[1], -1)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        queries = self.transpose_qkv(self.W_q(queries))
        keys = self.transpose_qkv(self.W_k(keys))
        values = self.transpose_qkv(self.W_v(values))
        if valid_lens is not None:
            valid_lens = torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
        output = torch.bmm(self.dropout(masked_softmax(scores, valid_lens)), values)
        return self.W_o(self.transpose_output(output))


class ClassifierAttention(nn.Module):
    def __init__(self, dim_model, num_head):
        super().__init__()
        self.num_head = num_head
        self.dim_head = dim_model // num_head
        self.fc_Q = nn.Linear(dim_model, num_head * self.dim_head)
        self.fc_K = nn.Linear(dim_model, num_head * self.dim_head)
        self.fc_V = nn.Linear(dim_model, num_head * self.dim_head)
        self.fc = nn.Linear(num_head * self.dim_head, dim_model)

    def forward(self, x):
        batch_size = x.size(0)
        Q = self.fc_Q(x).view(batch_size * self.num_head, -1, self.dim_head)
        K = self.fc_K(x).view(batch_size * self.num_head, -1, self.dim_head)
        V = self.fc_V(x).view(batch_size * self.num_head, -1, self.dim_head)
        attention = torch.matmul(Q, K.permute(0, 2, 1)) * K.size(-1) ** -0.5
        context = torch.matmul(F.softmax(attention, dim=-1), V)
        context = context.view(batch_size, -1, self.dim_head * self.num_head)
        return self.fc(context)


class ProjectedAttention(nn.Module):
    def __init__(self, emb_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, emb_dim // num_heads
        self.query_proj = nn.Linear(emb_dim, emb_dim)
        self.key_proj = nn.Linear(emb_dim, emb_dim)
        self.value_proj = nn.Linear(emb_dim, emb_dim)
        self.out_proj = nn.Linear(emb_dim, emb_dim)

    def reshape_from_feed(self, batch_size, tensor):
        tensor = tensor.view(batch_size, -1, self.num_heads, self.head_dim).permute(0, 2, 1, 3)
        return tensor.reshape(batch_size * self.num_heads, -1, self.head_dim)

    def forward(self, query, key, value):
        batch_size = query.size(0)
        q = self.reshape_from_feed(batch_size, self.query_proj(query))
        k = self.reshape_from_feed(batch_size, self.key_proj(key))
        v = self.reshape_from_feed(batch_size, self.value_proj(value))
        weight = F.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.head_dim), dim=-1)
        output = torch.bmm(weight, v).view(self.num_heads, batch_size, -1, self.head_dim)
        output = output.permute(1, 2, 0, 3).contiguous().view(batch_size, -1, self.num_heads * self.head_dim)
        return self.out_proj(output)
