import math

import torch
from torch import nn


class T5Attention(nn.Module):
    """
    T5 style self attention. As in the Mesh-TensorFlow implementation there is no ``1/sqrt(d_kv)``
    factor on the scores: it is folded into the initialisation of the query weights.
    """

    def __init__(self, d_model=64, num_heads=4, d_kv=16, relative_attention_num_buckets=32,
                 relative_attention_max_distance=128, is_decoder=False, dropout_rate=0.1):
        super().__init__()
        self.is_decoder = is_decoder
        self.d_model = d_model
        self.key_value_proj_dim = d_kv
        self.n_heads = num_heads
        self.inner_dim = num_heads * d_kv
        self.num_buckets = relative_attention_num_buckets
        self.max_distance = relative_attention_max_distance
        self.dropout = dropout_rate

        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(self.num_buckets, num_heads)
        self._init_weights()

    def _init_weights(self, factor=1.0):
        self.q.weight.data.normal_(0.0, factor * (self.d_model * self.key_value_proj_dim) ** -0.5)
        self.k.weight.data.normal_(0.0, factor * self.d_model ** -0.5)
        self.v.weight.data.normal_(0.0, factor * self.d_model ** -0.5)
        self.o.weight.data.normal_(0.0, factor * self.inner_dim ** -0.5)
        self.relative_attention_bias.weight.data.normal_(0.0, factor * self.d_model ** -0.5)

    @staticmethod
    def _relative_position_bucket(relative_position, bidirectional=True, num_buckets=32, max_distance=128):
        buckets = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            buckets = buckets + (relative_position > 0).long() * num_buckets
            relative_position = relative_position.abs()
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))

        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, query_length, key_length, device):
        context = torch.arange(query_length, dtype=torch.long, device=device)[:, None]
        memory = torch.arange(key_length, dtype=torch.long, device=device)[None, :]
        bucket = self._relative_position_bucket(
            memory - context, bidirectional=not self.is_decoder,
            num_buckets=self.num_buckets, max_distance=self.max_distance)
        return self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None):
        """
        Args:
            hidden_states: (batch, seq, d_model)
            mask: (batch, seq), 1 for tokens that are attended to and 0 for padding
        """
        batch_size, seq_length = hidden_states.shape[:2]

        def shape(states):
            return states.view(batch_size, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

        query_states = shape(self.q(hidden_states))
        key_states = shape(self.k(hidden_states))
        value_states = shape(self.v(hidden_states))

        scores = torch.matmul(query_states, key_states.transpose(3, 2))
        scores = scores + self.compute_bias(seq_length, seq_length, scores.device)

        blocked = torch.zeros(1, 1, seq_length, seq_length, dtype=torch.bool, device=scores.device)
        if self.is_decoder:
            blocked = blocked | torch.ones_like(blocked).triu(1)
        if mask is not None:
            blocked = blocked | (mask[:, None, None, :] == 0)
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)

        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn_weights = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        attn_output = torch.matmul(attn_weights, value_states)
        attn_output = attn_output.transpose(1, 2).contiguous().view(batch_size, -1, self.inner_dim)
        return self.o(attn_output)
