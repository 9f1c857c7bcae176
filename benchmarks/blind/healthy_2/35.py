"""T5-style encoder-decoder with bucketed relative position biases."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class T5Norm(nn.Module):
    """Scale only, no mean subtraction."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class RelativeBias(nn.Module):
    def __init__(self, num_heads, bidirectional, num_buckets=32, max_distance=128):
        super().__init__()
        self.bidirectional = bidirectional
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.table = nn.Embedding(num_buckets, num_heads)

    def _bucket(self, rel):
        """rel = key position - query position"""
        buckets, base = self.num_buckets, torch.zeros_like(rel)
        if self.bidirectional:
            buckets //= 2
            base = (rel > 0).long() * buckets
            rel = rel.abs()
        else:
            rel = (-rel).clamp(min=0)
        exact = buckets // 2
        ratio = torch.log(rel.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return base + torch.where(rel < exact, rel, far)

    def forward(self, n_query, n_key):
        device = self.table.weight.device
        rel = torch.arange(n_key, device=device)[None, :] - torch.arange(n_query, device=device)[:, None]
        return self.table(self._bucket(rel)).permute(2, 0, 1).unsqueeze(0)  # (1, H, n_query, n_key)


class T5Attention(nn.Module):
    """No 1/sqrt(d): as in T5 the factor is folded into the initialisation of ``q``."""

    def __init__(self, dim, num_heads, d_kv, dropout):
        super().__init__()
        inner = num_heads * d_kv
        self.num_heads, self.d_kv = num_heads, d_kv
        self.q = nn.Linear(dim, inner, bias=False)
        self.k = nn.Linear(dim, inner, bias=False)
        self.v = nn.Linear(dim, inner, bias=False)
        self.o = nn.Linear(inner, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.q.weight, std=(dim * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=dim ** -0.5)
        nn.init.normal_(self.v.weight, std=dim ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)

    def forward(self, x, memory, bias):
        def heads(t):
            return t.view(t.size(0), t.size(1), self.num_heads, self.d_kv).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(memory)), heads(self.v(memory))
        scores = q @ k.transpose(-1, -2) + bias
        weights = self.dropout(F.softmax(scores.float(), dim=-1).type_as(scores))
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class T5Layer(nn.Module):
    def __init__(self, dim, num_heads, d_kv, d_ff, dropout, is_decoder):
        super().__init__()
        self.norm_self = T5Norm(dim)
        self.self_attn = T5Attention(dim, num_heads, d_kv, dropout)
        self.is_decoder = is_decoder
        if is_decoder:
            self.norm_cross = T5Norm(dim)
            self.cross_attn = T5Attention(dim, num_heads, d_kv, dropout)
        self.norm_ff = T5Norm(dim)
        self.wi = nn.Linear(dim, d_ff, bias=False)
        self.wo = nn.Linear(d_ff, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, self_bias, memory=None, cross_bias=None):
        y = self.norm_self(x)
        x = x + self.dropout(self.self_attn(y, y, self_bias))
        if self.is_decoder:
            x = x + self.dropout(self.cross_attn(self.norm_cross(x), memory, cross_bias))
        y = self.wo(self.dropout(F.relu(self.wi(self.norm_ff(x)))))
        return x + self.dropout(y)


class MiniT5(nn.Module):
    """input_ids (B, S) and decoder_input_ids (B, T), padded on the right with ``pad_id``.

    As in T5 the decoder input starts with the pad id as its BOS symbol, therefore the decoder
    relies on the causal mask alone and does not hide pad ids.
    """

    def __init__(self, vocab_size=1000, dim=64, num_heads=4, d_kv=16, d_ff=128, num_layers=2,
                 dropout=0.1, pad_id=0):
        super().__init__()
        self.pad_id, self.dim = pad_id, dim
        self.shared = nn.Embedding(vocab_size, dim)
        # one bias table per stack, shared by all of its layers; cross-attention has none
        self.enc_bias = RelativeBias(num_heads, bidirectional=True)
        self.dec_bias = RelativeBias(num_heads, bidirectional=False)
        self.encoder = nn.ModuleList(T5Layer(dim, num_heads, d_kv, d_ff, dropout, False) for _ in range(num_layers))
        self.decoder = nn.ModuleList(T5Layer(dim, num_heads, d_kv, d_ff, dropout, True) for _ in range(num_layers))
        self.enc_norm, self.dec_norm = T5Norm(dim), T5Norm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids, decoder_input_ids):
        S, T = input_ids.size(1), decoder_input_ids.size(1)
        x = self.dropout(self.shared(input_ids))
        y = self.dropout(self.shared(decoder_input_ids))
        low = torch.finfo(x.dtype).min
        pad = input_ids.eq(self.pad_id)[:, None, None, :]
        pad_bias = torch.zeros(pad.shape, dtype=x.dtype, device=x.device).masked_fill(pad, low)

        enc_bias = self.enc_bias(S, S).masked_fill(pad, low)
        for layer in self.encoder:
            x = layer(x, enc_bias)
        memory = self.dropout(self.enc_norm(x))

        future = torch.ones(T, T, dtype=torch.bool, device=y.device).triu(1)
        dec_bias = self.dec_bias(T, T).masked_fill(future, low)
        for layer in self.decoder:
            y = layer(y, dec_bias, memory, pad_bias)
        y = self.dropout(self.dec_norm(y))
        # tied output layer, rescaled because the embedding has unit variance
        return F.linear(y * self.dim ** -0.5, self.shared.weight)
