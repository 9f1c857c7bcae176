import math
from typing import Optional, Tuple

import torch
from torch import nn


class T5Attention(nn.Module):
    """T5 self-attention: no projection biases, no 1/sqrt(d) (folded into the initialisation), bucketed
    relative position bias.

    Only the first layer of a stack owns the bias table; the others are given the ``position_bias`` it
    returns (without the mask, which every layer adds by itself).

    Args of forward:
        hidden_states: (batch, seq, d_model)
        attention_mask: (batch, past + seq), 1 for tokens and 0 for padding
        position_bias: (1, heads, seq, past + seq) from the first layer
        past_key_value: (key, value) of the tokens before
    """

    def __init__(
        self,
        d_model: int = 256,
        d_kv: int = 32,
        num_heads: int = 8,
        is_decoder: bool = False,
        has_relative_attention_bias: bool = True,
        relative_attention_num_buckets: int = 32,
        relative_attention_max_distance: int = 128,
        dropout_rate: float = 0.0,
    ):
        super().__init__()
        self.is_decoder = is_decoder
        self.has_relative_attention_bias = has_relative_attention_bias
        self.num_buckets = relative_attention_num_buckets
        self.max_distance = relative_attention_max_distance
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.dropout = dropout_rate
        inner_dim = num_heads * d_kv

        self.q = nn.Linear(d_model, inner_dim, bias=False)
        self.k = nn.Linear(d_model, inner_dim, bias=False)
        self.v = nn.Linear(d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, d_model, bias=False)
        if has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(self.num_buckets, num_heads)
            nn.init.normal_(self.relative_attention_bias.weight, std=d_model**-0.5)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model**-0.5)
        nn.init.normal_(self.v.weight, std=d_model**-0.5)
        nn.init.normal_(self.o.weight, std=inner_dim**-0.5)

    @staticmethod
    def _relative_position_bucket(relative_position, bidirectional, num_buckets, max_distance):
        """relative_position is memory_position - query_position."""
        relative_buckets = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return relative_buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, query_length: int, key_length: int, device) -> torch.Tensor:
        """Bias of the last ``query_length`` of ``key_length`` positions."""
        context_position = torch.arange(key_length - query_length, key_length, device=device)[:, None]
        memory_position = torch.arange(key_length, device=device)[None, :]
        buckets = self._relative_position_bucket(
            memory_position - context_position, not self.is_decoder, self.num_buckets, self.max_distance
        )
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_bias: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        bsz, seq, _ = hidden_states.shape
        split = lambda t: t.view(bsz, seq, self.n_heads, self.d_kv).transpose(1, 2)
        q, k, v = split(self.q(hidden_states)), split(self.k(hidden_states)), split(self.v(hidden_states))
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        key_length = k.shape[2]

        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            if self.has_relative_attention_bias:
                position_bias = self.compute_bias(seq, key_length, scores.device)
            else:
                position_bias = scores.new_zeros(1, self.n_heads, seq, key_length)
        scores = scores + position_bias

        allowed = torch.ones(seq, key_length, dtype=torch.bool, device=scores.device)
        if self.is_decoder:
            allowed = allowed.tril(key_length - seq)
        allowed = allowed[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None, :].bool()
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

        attn = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn = nn.functional.dropout(attn, p=self.dropout, training=self.training)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(bsz, seq, -1)
        return self.o(out), position_bias, (k, v)
