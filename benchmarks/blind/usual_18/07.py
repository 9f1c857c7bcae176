import math

import torch
from torch import nn


class T5Attention(nn.Module):
    """T5 self-attention with bucketed relative position bias.

    Like the original Mesh-TensorFlow code, logits are not divided by sqrt(d_kv); the factor is part of
    the initialisation of `q` instead.
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=4, num_buckets=32, max_distance=128, is_decoder=False):
        super().__init__()
        self.is_decoder = is_decoder
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.d_kv = d_kv
        self.n_heads = num_heads
        self.inner_dim = num_heads * d_kv

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

    @staticmethod
    def _relative_position_bucket(relative_position, bidirectional, num_buckets, max_distance):
        buckets = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            buckets = buckets + (relative_position > 0).long() * num_buckets
            relative_position = relative_position.abs()
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))

        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        ratio = relative_position.clamp(min=1).float() / max_exact
        large = max_exact + (
            torch.log(ratio) / math.log(max_distance / max_exact) * (num_buckets - max_exact)
        ).long()
        large = large.clamp(max=num_buckets - 1)
        return buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, length, device):
        context = torch.arange(length, device=device)[:, None]
        memory = torch.arange(length, device=device)[None, :]
        buckets = self._relative_position_bucket(
            memory - context, not self.is_decoder, self.num_buckets, self.max_distance
        )
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None):
        """mask: (batch, length), 1 for tokens and 0 for padding."""
        bsz, length, _ = hidden_states.shape

        def shape(t):
            return t.view(bsz, length, self.n_heads, self.d_kv).transpose(1, 2)

        q = shape(self.q(hidden_states))
        k = shape(self.k(hidden_states))
        v = shape(self.v(hidden_states))

        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(length, scores.device)

        visible = torch.ones(1, 1, length, length, dtype=torch.bool, device=scores.device)
        if self.is_decoder:
            visible = visible.tril()
        if mask is not None:
            visible = visible & mask[:, None, None, :].bool()
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)

        weights = torch.softmax(scores.float(), dim=-1).type_as(scores)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(bsz, length, self.inner_dim)
        return self.o(out)
