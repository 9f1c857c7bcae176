import math
from typing import Optional, Tuple

import torch
from torch import nn


class T5SelfAttention(nn.Module):
    """T5 self-attention.

    T5 does not divide the logits by sqrt(d_kv); the factor is folded into the initialisation of
    the query projection. The relative position bias is shared by the layers: the first layer
    owns the table and returns the bias, later layers get it through ``position_bias``.
    """

    def __init__(
        self,
        d_model: int = 128,
        d_kv: int = 32,
        num_heads: int = 4,
        is_decoder: bool = False,
        has_relative_attention_bias: bool = True,
        num_buckets: int = 32,
        max_distance: int = 128,
        dropout_rate: float = 0.0,
    ):
        super().__init__()
        self.is_decoder = is_decoder
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.inner_dim = num_heads * d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.dropout = dropout_rate

        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = (
            nn.Embedding(num_buckets, num_heads) if has_relative_attention_bias else None
        )

        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)

    def _bucket(self, relative_position: torch.Tensor) -> torch.Tensor:
        """relative_position = key position - query position"""
        num_buckets = self.num_buckets
        buckets = torch.zeros_like(relative_position)
        if not self.is_decoder:
            num_buckets //= 2
            buckets = buckets + (relative_position > 0).long() * num_buckets
            n = relative_position.abs()
        else:
            n = -torch.clamp(relative_position, max=0)
        max_exact = num_buckets // 2
        is_small = n < max_exact
        large = max_exact + (
            torch.log(n.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        large = large.clamp(max=num_buckets - 1)
        return buckets + torch.where(is_small, n, large)

    def compute_bias(self, query_length: int, key_length: int, device) -> torch.Tensor:
        context = torch.arange(key_length - query_length, key_length, device=device)[:, None]
        memory = torch.arange(key_length, device=device)[None, :]
        values = self.relative_attention_bias(self._bucket(memory - context))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
        position_bias: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        """mask: additive, (batch, 1, 1 or q_len, k_len), 0 for visible and a large negative number else."""
        b, q_len, _ = hidden_states.shape

        def shape(t):
            return t.view(b, -1, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        k_len = k.size(2)

        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            if self.relative_attention_bias is None:
                position_bias = scores.new_zeros(1, self.n_heads, q_len, k_len)
            else:
                position_bias = self.compute_bias(q_len, k_len, scores.device)
            if self.is_decoder:
                future = torch.ones(q_len, k_len, dtype=torch.bool, device=scores.device)
                future = future.triu(k_len - q_len + 1)
                position_bias = position_bias.masked_fill(future, torch.finfo(scores.dtype).min)
            if mask is not None:
                position_bias = position_bias + mask

        scores = (scores + position_bias).clamp(min=torch.finfo(scores.dtype).min)
        attn = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn = nn.functional.dropout(attn, p=self.dropout, training=self.training)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(b, q_len, self.inner_dim)
        return self.o(out), (k, v), position_bias
