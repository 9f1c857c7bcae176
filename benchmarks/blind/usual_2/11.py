import math

import torch
from torch import nn


class T5EncoderSelfAttention(nn.Module):
    """T5 self-attention with the bucketed relative position bias.

    As in Mesh-TensorFlow there is no 1/sqrt(d_kv) on the scores: it is absorbed in the
    initialisation of the query projection, see `reset_parameters`.
    """

    def __init__(self, d_model=128, d_kv=16, num_heads=8, num_buckets=32, max_distance=128, dropout_rate=0.1):
        super().__init__()
        self.d_model = d_model
        self.key_value_proj_dim = d_kv
        self.n_heads = num_heads
        self.inner_dim = num_heads * d_kv
        self.relative_attention_num_buckets = num_buckets
        self.relative_attention_max_distance = max_distance
        self.dropout = nn.Dropout(dropout_rate)

        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.reset_parameters()

    def reset_parameters(self):
        self.q.weight.data.normal_(mean=0.0, std=(self.d_model * self.key_value_proj_dim) ** -0.5)
        self.k.weight.data.normal_(mean=0.0, std=self.d_model ** -0.5)
        self.v.weight.data.normal_(mean=0.0, std=self.d_model ** -0.5)
        self.o.weight.data.normal_(mean=0.0, std=self.inner_dim ** -0.5)
        self.relative_attention_bias.weight.data.normal_(mean=0.0, std=self.d_model ** -0.5)

    @staticmethod
    def _relative_position_bucket(relative_position, num_buckets=32, max_distance=128):
        """relative_position is memory_position - query_position; half of the buckets for each sign."""
        num_buckets //= 2
        buckets = (relative_position > 0).long() * num_buckets
        n = relative_position.abs()
        max_exact = num_buckets // 2
        is_small = n < max_exact
        large = max_exact + (
            torch.log(n.clamp(min=1).float() / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        large = torch.clamp(large, max=num_buckets - 1)
        return buckets + torch.where(is_small, n, large)

    def compute_bias(self, length, device):
        position = torch.arange(length, dtype=torch.long, device=device)
        relative_position = position[None, :] - position[:, None]
        bucket = self._relative_position_bucket(
            relative_position, self.relative_attention_num_buckets, self.relative_attention_max_distance
        )
        return self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None, position_bias=None):
        """mask: (batch, length) with 1 for tokens and 0 for padding.
        Returns the output and the position bias, which the layers above reuse."""
        batch_size, length, _ = hidden_states.shape

        def shape(states):
            return states.view(batch_size, length, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))

        if position_bias is None:
            position_bias = self.compute_bias(length, scores.device).to(scores.dtype)
        scores = scores + position_bias
        if mask is not None:
            scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min

        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn_weights = self.dropout(attn_weights)
        attn_output = torch.matmul(attn_weights, v)
        attn_output = attn_output.transpose(1, 2).contiguous().view(batch_size, length, self.inner_dim)
        return self.o(attn_output), position_bias
