import math
from typing import Optional

import torch
from torch import nn


class T5DecoderSelfAttention(nn.Module):
    """Decoder self-attention with the bucketed relative position bias of T5.

    Half of the buckets hold exact distances into the past, the other half grow logarithmically
    up to ``max_distance``. As in T5 the logits are not scaled.
    """

    def __init__(
        self,
        d_model: int = 64,
        num_heads: int = 4,
        d_kv: int = 16,
        num_buckets: int = 32,
        max_distance: int = 128,
        dropout_rate: float = 0.0,
    ):
        super().__init__()
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
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)

    @staticmethod
    def _relative_position_bucket(relative_position, num_buckets=32, max_distance=128):
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        # half of the buckets are for exact increments in positions
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        # the other half are for logarithmically bigger bins in positions up to max_distance
        large = max_exact + (
            torch.log(relative_position.clamp(min=1).float() / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return torch.where(is_small, relative_position, large)

    def compute_bias(self, length: int, device) -> torch.Tensor:
        context_position = torch.arange(length, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(length, dtype=torch.long, device=device)[None, :]
        relative_position = context_position - memory_position  # (length, length)
        buckets = self._relative_position_bucket(relative_position, self.num_buckets, self.max_distance)
        values = self.relative_attention_bias(buckets)
        return values.permute(2, 0, 1).unsqueeze(0)  # (1, heads, length, length)

    def forward(self, hidden_states: torch.Tensor, position_bias: Optional[torch.Tensor] = None):
        bsz, length, _ = hidden_states.shape

        def shape(t):
            return t.view(bsz, length, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))

        if position_bias is None:
            position_bias = self.compute_bias(length, hidden_states.device)
            future = torch.ones(length, length, dtype=torch.bool, device=hidden_states.device).triu(1)
            position_bias = position_bias.masked_fill(future, torch.finfo(scores.dtype).min)

        scores = scores + position_bias
        attn = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn = nn.functional.dropout(attn, p=self.dropout, training=self.training)
        out = torch.matmul(attn, v).transpose(1, 2).contiguous().view(bsz, length, self.inner_dim)
        return self.o(out), position_bias
