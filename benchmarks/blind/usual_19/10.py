import math

import torch
import torch.nn as nn


class RelativeBiasEncoderAttention(nn.Module):
    """T5 encoder self-attention.

    As in the original Mesh TensorFlow code the logits are not divided by sqrt(d_kv); the factor
    is folded into the initialisation of the query projection.
    """

    def __init__(self, d_model=64, num_heads=4, d_kv=16, num_buckets=32, max_distance=128, dropout_rate=0.0):
        super().__init__()
        self.d_model = d_model
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
        self._init_weights()

    def _init_weights(self):
        nn.init.normal_(self.q.weight, std=(self.d_model * self.d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=self.d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=self.d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=self.d_model ** -0.5)

    def _bucket(self, relative_position):
        num_buckets = self.num_buckets // 2
        buckets = (relative_position > 0).to(torch.long) * num_buckets
        relative_position = relative_position.abs()

        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        large = large.clamp(max=num_buckets - 1)
        return buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, length, device):
        context = torch.arange(length, device=device)[:, None]
        memory = torch.arange(length, device=device)[None, :]
        values = self.relative_attention_bias(self._bucket(memory - context))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, seq), 1 for tokens and 0 for padding."""
        b, n, _ = hidden_states.shape

        def shape(t):
            return t.view(b, n, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        position_bias = self.compute_bias(n, hidden_states.device).to(scores.dtype)
        if attention_mask is not None:
            extended = (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
            position_bias = position_bias + extended
        scores = scores + position_bias

        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, n, self.inner_dim)
        return self.o(out)
