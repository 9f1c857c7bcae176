import math

import torch
from torch import nn


class T5LayerNorm(nn.Module):
    """Scale only: no bias and no subtraction of mean."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(self.weight.dtype)


class T5SelfAttentionLayer(nn.Module):
    """Encoder self-attention sublayer of T5.

    The logits are not divided by sqrt(d_kv): Mesh-TensorFlow folds that factor into the initialisation of ``q``
    (std = (d_model * d_kv) ** -0.5). ``mask`` is (batch, seq), 1 = attend.
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=4, dropout_rate=0.1,
                 relative_attention_num_buckets=32, relative_attention_max_distance=128):
        super().__init__()
        self.n_heads = num_heads
        self.d_kv = d_kv
        inner_dim = num_heads * d_kv
        self.num_buckets = relative_attention_num_buckets
        self.max_distance = relative_attention_max_distance
        self.q = nn.Linear(d_model, inner_dim, bias=False)
        self.k = nn.Linear(d_model, inner_dim, bias=False)
        self.v = nn.Linear(d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(self.num_buckets, num_heads)
        self.layer_norm = T5LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout_rate)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner_dim ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=d_model ** -0.5)

    def _relative_position_bucket(self, relative_position):
        num_buckets = self.num_buckets // 2
        relative_buckets = (relative_position > 0).to(torch.long) * num_buckets
        relative_position = torch.abs(relative_position)
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return relative_buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, length, device):
        context_position = torch.arange(length, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(length, dtype=torch.long, device=device)[None, :]
        bucket = self._relative_position_bucket(memory_position - context_position)
        return self.relative_attention_bias(bucket).permute([2, 0, 1]).unsqueeze(0)

    def forward(self, hidden_states, mask=None):
        batch_size, seq_length, _ = hidden_states.shape
        normed = self.layer_norm(hidden_states)

        def shape(states):
            return states.view(batch_size, -1, self.n_heads, self.d_kv).transpose(1, 2)

        query, key, value = shape(self.q(normed)), shape(self.k(normed)), shape(self.v(normed))
        scores = torch.matmul(query, key.transpose(3, 2))
        position_bias = self.compute_bias(seq_length, scores.device)
        if mask is not None:
            extended = (1.0 - mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
            position_bias = position_bias + extended
        scores = scores + position_bias
        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn_weights = self.dropout(attn_weights)
        out = torch.matmul(attn_weights, value).transpose(1, 2).reshape(batch_size, seq_length, -1)
        return hidden_states + self.dropout(self.o(out))
