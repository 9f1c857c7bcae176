"""The sliding window diagonal has the wrong sign and cuts the causal mask instead of adding a lower band.

huggingface/transformers #41228 (2025)
https://github.com/huggingface/transformers/pull/41228
"""
from typing import Optional

import torch
from torch import nn


class _PagedAttentionBase(nn.Module):
    """
    Eager attention of continuous batching: queries of several requests are packed in one row, the keys of every
    request hold its cached tokens first and the new ones last.

    Args:
        sliding_window: a token attends to itself and to the `sliding_window - 1` tokens before it (1 = no window)
    """

    def __init__(self, hidden_size: int, num_heads: int, sliding_window: int = 1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def build_attention_mask(self, cu_q, cu_k, dtype):
        min_value = torch.finfo(dtype).min
        attention_mask = torch.full((1, 1, cu_q[-1], cu_k[-1]), min_value, dtype=dtype)
        for i in range(len(cu_q) - 1):
            seqlen_q, seqlen_k = cu_q[i + 1] - cu_q[i], cu_k[i + 1] - cu_k[i]
            minus_inf = torch.full((seqlen_q, seqlen_k), min_value, dtype=dtype)
            masked = self.mask_request(minus_inf, seqlen_q, seqlen_k)
            attention_mask[..., cu_q[i]:cu_q[i + 1], cu_k[i]:cu_k[i + 1]] = masked
        return attention_mask

    def forward(self, hidden_states, context, cu_seq_lens_q, cu_seq_lens_k):
        """
        hidden_states: (1, total_q, hidden) new tokens of all requests; context: (1, total_k, hidden) cached and new
        tokens of all requests; cu_seq_lens_*: cumulative lengths, starting with 0
        """
        split = lambda t: t.view(1, t.shape[1], self.num_heads, self.head_dim).transpose(1, 2)
        q, k, v = split(self.q_proj(hidden_states)), split(self.k_proj(context)), split(self.v_proj(context))
        mask = self.build_attention_mask(cu_seq_lens_q.tolist(), cu_seq_lens_k.tolist(), q.dtype)
        attn = torch.softmax(q @ k.transpose(2, 3) * self.head_dim ** -0.5 + mask, dim=-1)
        return self.o_proj((attn @ v).transpose(1, 2).reshape(hidden_states.shape))


def broken() -> nn.Module:
    class PagedAttention(_PagedAttentionBase):
        def mask_request(self, minus_inf, seqlen_q, seqlen_k):
            causal_diagonal = seqlen_k - seqlen_q + 1
            masked = torch.triu(minus_inf, diagonal=causal_diagonal)
            # Apply sliding window mask if needed
            if self.sliding_window > 1:
                sliding_diagonal = seqlen_k - seqlen_q + self.sliding_window
                masked = torch.tril(masked, diagonal=sliding_diagonal)
            return masked

    torch.manual_seed(0)
    return PagedAttention(32, 4, sliding_window=4)


def fixed() -> nn.Module:
    class PagedAttention(_PagedAttentionBase):
        def mask_request(self, minus_inf, seqlen_q, seqlen_k):
            causal_diagonal = seqlen_k - seqlen_q + 1
            masked = torch.triu(minus_inf, diagonal=causal_diagonal)
            # Apply sliding window mask if needed
            if self.sliding_window > 1:
                sliding_diagonal = seqlen_k - seqlen_q - self.sliding_window
                masked += torch.tril(minus_inf, diagonal=sliding_diagonal)
            return masked

    torch.manual_seed(0)
    return PagedAttention(32, 4, sliding_window=4)


def example():
    g = torch.Generator().manual_seed(16)
    context = torch.randn(1, 17, 32, generator=g)
    cu_k, cu_q = torch.tensor([0, 10, 17]), torch.tensor([0, 10, 12])
    hidden_states = torch.cat([context[:, :10], context[:, 15:17]], dim=1)
    return (hidden_states, context, cu_q, cu_k), {}
