import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class T5SelfAttention(nn.Module):
    """
    T5 self-attention with bucketed relative position bias.

    The dot products are not divided by sqrt(d_kv): T5 folds that factor into the
    initialisation of the query projection (see ``reset_parameters``).

    Args to forward:
        hidden_states: (batch, q_len, d_model)
        mask: optional (batch, key_len), 1 for real tokens and 0 for padding; covers the
            cached tokens too when ``past_key_value`` is given
        past_key_value: (key, value), each (batch, heads, past_len, d_kv)
    """

    def __init__(self, d_model=64, num_heads=4, d_kv=16, num_buckets=32, max_distance=128, is_decoder=False):
        super().__init__()
        self.d_model = d_model
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.is_decoder = is_decoder
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.q.weight, std=(self.d_model * self.d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=self.d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=self.d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=(self.n_heads * self.d_kv) ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=self.d_model ** -0.5)

    def _bucket(self, relative_position):
        num_buckets = self.num_buckets
        offset = torch.zeros_like(relative_position)
        if self.is_decoder:
            distance = (-relative_position).clamp(min=0)
        else:
            num_buckets //= 2
            offset = (relative_position > 0).long() * num_buckets
            distance = relative_position.abs()
        max_exact = num_buckets // 2
        large = max_exact + (
            torch.log(distance.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        large = large.clamp(max=num_buckets - 1)
        return offset + torch.where(distance < max_exact, distance, large)

    def _shape(self, x):
        return x.view(x.size(0), -1, self.n_heads, self.d_kv).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        bsz, q_len, _ = hidden_states.shape
        q = self._shape(self.q(hidden_states))
        k = self._shape(self.k(hidden_states))
        v = self._shape(self.v(hidden_states))
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        k_len = k.size(2)

        context = torch.arange(k_len - q_len, k_len, device=q.device)[:, None]
        memory = torch.arange(k_len, device=q.device)[None, :]
        relative_position = memory - context
        bias = self.relative_attention_bias(self._bucket(relative_position)).permute(2, 0, 1).unsqueeze(0)

        scores = torch.matmul(q, k.transpose(3, 2)) + bias
        lowest = torch.finfo(scores.dtype).min
        if self.is_decoder:
            scores = scores.masked_fill(relative_position > 0, lowest)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, lowest)
        weights = torch.softmax(scores.float(), dim=-1).type_as(scores)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(bsz, q_len, -1)
        out = self.o(out)
        return (out, (k, v)) if use_cache else out
