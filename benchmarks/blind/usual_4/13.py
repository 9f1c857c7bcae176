import math

import torch
import torch.nn as nn


class T5StyleAttention(nn.Module):
    """
    Self-attention with a bucketed relative position bias.

    The scores are not divided by sqrt(d_kv); as in Mesh TensorFlow the factor is folded into the
    initialisation of ``q``. ``inner_dim = num_heads * d_kv`` may differ from ``d_model``.
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=6, num_buckets=32, max_distance=128,
                 is_decoder=False, dropout_rate=0.1):
        super().__init__()
        self.d_model = d_model
        self.d_kv = d_kv
        self.n_heads = num_heads
        self.inner_dim = num_heads * d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.is_decoder = is_decoder
        self.dropout = dropout_rate

        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=d_model ** -0.5)

    def _relative_position_bucket(self, relative_position):
        num_buckets = self.num_buckets
        relative_buckets = torch.zeros_like(relative_position)
        if not self.is_decoder:
            num_buckets //= 2
            relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))

        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return relative_buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, query_length, key_length, device):
        offset = key_length - query_length
        context_position = torch.arange(query_length, device=device)[:, None] + offset
        memory_position = torch.arange(key_length, device=device)[None, :]
        bucket = self._relative_position_bucket(memory_position - context_position)
        return self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None, past_key_value=None, use_cache=False):
        """
        attention_mask: (batch, key_length) with 1 for tokens to attend to and 0 for padding; with a
        cache it covers the past as well.
        """
        batch_size, seq_length, _ = hidden_states.shape

        def shape(states):
            return states.view(batch_size, -1, self.n_heads, self.d_kv).transpose(1, 2)

        query_states = shape(self.q(hidden_states))
        key_states = shape(self.k(hidden_states))
        value_states = shape(self.v(hidden_states))
        if past_key_value is not None:
            key_states = torch.cat([past_key_value[0], key_states], dim=2)
            value_states = torch.cat([past_key_value[1], value_states], dim=2)
        present = (key_states, value_states) if use_cache else None

        key_length = key_states.shape[2]
        scores = torch.matmul(query_states, key_states.transpose(3, 2))
        scores = scores + self.compute_bias(seq_length, key_length, scores.device)

        neg = torch.finfo(scores.dtype).min
        if self.is_decoder:
            allowed = torch.ones(seq_length, key_length, dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(~allowed.tril(key_length - seq_length), neg)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, neg)

        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn_weights = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        attn_output = torch.matmul(attn_weights, value_states)
        attn_output = attn_output.transpose(1, 2).reshape(batch_size, -1, self.inner_dim)
        return self.o(attn_output), present
