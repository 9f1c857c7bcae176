import math

import torch
import torch.nn as nn


class IncrementalAttention(nn.Module):
    """Self-attention of a decoder-only model for fast sampling.

    The first call takes the prompt (batch, prompt_len, d_model) with ``start_pos=0``, every further call one
    token (batch, 1, d_model) with its position. Keys and values are kept in buffers of fixed size so that
    the shapes never change while sampling.
    """

    def __init__(self, d_model=64, num_heads=4, max_batch_size=4, max_seq_len=64):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.max_seq_len = max_seq_len
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model, bias=False)
        cache_shape = (max_batch_size, num_heads, max_seq_len, self.head_dim)
        self.register_buffer("k_cache", torch.zeros(cache_shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(cache_shape), persistent=False)

    def reset(self):
        self.k_cache.zero_()
        self.v_cache.zero_()

    @torch.no_grad()
    def forward(self, x, start_pos=0):
        bsz, seqlen, d_model = x.shape
        q = self.query(x).view(bsz, seqlen, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.key(x).view(bsz, seqlen, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.value(x).view(bsz, seqlen, self.num_heads, self.head_dim).transpose(1, 2)

        self.k_cache[:bsz, :, start_pos : start_pos + seqlen] = k
        self.v_cache[:bsz, :, start_pos : start_pos + seqlen] = v
        keys = self.k_cache[:bsz]
        values = self.v_cache[:bsz]

        scores = torch.matmul(q, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if seqlen > 1:
            mask = torch.full((seqlen, self.max_seq_len), float("-inf"), device=x.device)
            mask = torch.triu(mask, diagonal=start_pos + 1)
            scores = scores + mask
        weights = torch.softmax(scores, dim=-1)
        out = torch.matmul(weights, values)
        return self.proj(out.transpose(1, 2).reshape(bsz, seqlen, d_model))
