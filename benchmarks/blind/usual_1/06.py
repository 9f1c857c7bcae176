import math

import torch
from torch import nn


class T5DecoderSelfAttention(nn.Module):
    """Decoder self-attention with T5 relative position buckets. As in T5, the logits are not scaled."""

    def __init__(self, d_model=64, d_kv=16, num_heads=4, relative_attention_num_buckets=32,
                 relative_attention_max_distance=128, dropout_rate=0.0):
        super().__init__()
        self.n_heads = num_heads
        self.key_value_proj_dim = d_kv
        self.inner_dim = num_heads * d_kv
        self.relative_attention_num_buckets = relative_attention_num_buckets
        self.relative_attention_max_distance = relative_attention_max_distance
        self.dropout = dropout_rate

        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(relative_attention_num_buckets, num_heads)
        self._init_weights(d_model, d_kv)

    def _init_weights(self, d_model, d_kv):
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)

    @staticmethod
    def _relative_position_bucket(relative_position, num_buckets=32, max_distance=128):
        """
        Unidirectional buckets: half of them for exact small distances, the other half for
        logarithmically larger distances up to max_distance.
        """
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        relative_position_if_large = max_exact + (
            torch.log(relative_position.float() / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        relative_position_if_large = torch.min(
            relative_position_if_large, torch.full_like(relative_position_if_large, num_buckets - 1)
        )
        return torch.where(is_small, relative_position, relative_position_if_large)

    def compute_bias(self, query_length, key_length, device=None):
        """Compute binned relative position bias, (1, num_heads, query_length, key_length)."""
        context_position = torch.arange(query_length, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(key_length, dtype=torch.long, device=device)[None, :]
        relative_position = context_position - memory_position
        relative_position_bucket = self._relative_position_bucket(
            relative_position,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )
        values = self.relative_attention_bias(relative_position_bucket)
        return values.permute([2, 0, 1]).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        batch_size, seq_length = hidden_states.shape[:2]

        def shape(states):
            return states.view(batch_size, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

        query_states = shape(self.q(hidden_states))
        key_states = shape(self.k(hidden_states))
        value_states = shape(self.v(hidden_states))

        scores = torch.matmul(query_states, key_states.transpose(3, 2))
        scores = scores + self.compute_bias(seq_length, seq_length, device=scores.device)

        min_value = torch.finfo(scores.dtype).min
        causal = torch.ones(seq_length, seq_length, dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, min_value)
        if attention_mask is not None:  # (batch, seq), 1 for real tokens
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, min_value)

        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn_weights = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        attn_output = torch.matmul(attn_weights, value_states)
        attn_output = attn_output.transpose(1, 2).reshape(batch_size, seq_length, self.inner_dim)
        return self.o(attn_output)
