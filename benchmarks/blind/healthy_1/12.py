import math
from typing import Optional, Tuple

import torch
from torch import nn


class T5Attention(nn.Module):
    """T5 attention: no 1/sqrt(d) (folded into the initialisation), additive bucketed relative bias.

    ``mask`` is ``(batch, key_length)`` with 1 for tokens to attend to and 0 for padding; it must cover
    cached positions too. Decoders (``is_decoder=True``) are causal in self-attention.
    ``position_bias`` returned by the first layer is to be passed to the other layers.
    """

    def __init__(
        self,
        d_model: int = 128,
        d_kv: int = 32,
        num_heads: int = 4,
        is_decoder: bool = False,
        has_relative_attention_bias: bool = True,
        relative_attention_num_buckets: int = 32,
        relative_attention_max_distance: int = 128,
        dropout_rate: float = 0.0,
    ):
        super().__init__()
        self.is_decoder = is_decoder
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.inner_dim = num_heads * d_kv
        self.num_buckets = relative_attention_num_buckets
        self.max_distance = relative_attention_max_distance
        self.dropout = dropout_rate

        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = (
            nn.Embedding(self.num_buckets, num_heads) if has_relative_attention_bias else None
        )
        nn.init.normal_(self.q.weight, mean=0.0, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, mean=0.0, std=d_model**-0.5)
        nn.init.normal_(self.v.weight, mean=0.0, std=d_model**-0.5)
        nn.init.normal_(self.o.weight, mean=0.0, std=self.inner_dim**-0.5)

    def _relative_position_bucket(self, relative_position):
        num_buckets = self.num_buckets
        buckets = torch.zeros_like(relative_position)
        if not self.is_decoder:
            num_buckets //= 2
            buckets = buckets + (relative_position > 0).long() * num_buckets
            distance = relative_position.abs()
        else:
            # keys lie to the left: relative_position <= 0, anything to the right shares bucket 0
            distance = (-relative_position).clamp(min=0)
        max_exact = num_buckets // 2
        large = max_exact + (
            torch.log(distance.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        large = large.clamp(max=num_buckets - 1)
        return buckets + torch.where(distance < max_exact, distance, large)

    def compute_bias(self, query_length: int, key_length: int, device) -> torch.Tensor:
        # queries are the last `query_length` of the `key_length` positions
        context = torch.arange(key_length - query_length, key_length, device=device)[:, None]
        memory = torch.arange(key_length, device=device)[None, :]
        values = self.relative_attention_bias(self._relative_position_bucket(memory - context))
        return values.permute(2, 0, 1).unsqueeze(0)

    def _split(self, t):
        return t.view(t.shape[0], -1, self.n_heads, self.d_kv).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
        key_value_states: Optional[torch.Tensor] = None,
        position_bias: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        bsz, q_len = hidden_states.shape[:2]
        cross = key_value_states is not None

        q = self._split(self.q(hidden_states))
        if cross and past_key_value is not None:
            k, v = past_key_value
        else:
            source = key_value_states if cross else hidden_states
            k, v = self._split(self.k(source)), self._split(self.v(source))
            if past_key_value is not None:
                k = torch.cat([past_key_value[0], k], dim=2)
                v = torch.cat([past_key_value[1], v], dim=2)
        k_len = k.shape[2]

        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            if cross or self.relative_attention_bias is None:
                position_bias = scores.new_zeros(1, self.n_heads, q_len, k_len)
            else:
                position_bias = self.compute_bias(q_len, k_len, scores.device).to(scores.dtype)
        scores = scores + position_bias

        min_value = torch.finfo(scores.dtype).min
        if self.is_decoder and not cross:
            causal = torch.ones(q_len, k_len, dtype=torch.bool, device=scores.device).tril(k_len - q_len)
            scores = scores.masked_fill(~causal, min_value)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, min_value)

        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(bsz, q_len, self.inner_dim)
        return self.o(out), position_bias, (k, v)
