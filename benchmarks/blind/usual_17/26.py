import math

import torch
from torch import nn


class T5DecoderSelfAttention(nn.Module):
    """Causal T5 self-attention with unidirectional relative position buckets.

    Logits are unscaled as in T5 (the initialisation takes care of it).
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=4, relative_attention_num_buckets=32,
                 relative_attention_max_distance=128, dropout_rate=0.0):
        super().__init__()
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.num_buckets = relative_attention_num_buckets
        self.max_distance = relative_attention_max_distance
        inner_dim = num_heads * d_kv
        self.q = nn.Linear(d_model, inner_dim, bias=False)
        self.k = nn.Linear(d_model, inner_dim, bias=False)
        self.v = nn.Linear(d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(self.num_buckets, num_heads)
        self.dropout = nn.Dropout(dropout_rate)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)

    def _relative_position_bucket(self, relative_position):
        # only the past is addressed: 0, 1, 2, ... steps back
        n = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = self.num_buckets // 2
        is_small = n < max_exact
        if_large = max_exact + (
            torch.log(n.float().clamp(min=1.0) / max_exact)
            / math.log(self.max_distance / max_exact)
            * (self.num_buckets - max_exact)
        ).to(torch.long)
        if_large = torch.min(if_large, torch.full_like(if_large, self.num_buckets - 1))
        return torch.where(is_small, n, if_large)

    def compute_bias(self, length, device):
        context_position = torch.arange(length, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(length, dtype=torch.long, device=device)[None, :]
        relative_position = context_position - memory_position
        values = self.relative_attention_bias(self._relative_position_bucket(relative_position))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states):
        bsz, length, _ = hidden_states.shape

        def shape(states):
            return states.view(bsz, length, self.n_heads, self.d_kv).transpose(1, 2)

        q = shape(self.q(hidden_states))
        k = shape(self.k(hidden_states))
        v = shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(length, hidden_states.device)
        causal = torch.ones(length, length, dtype=torch.bool, device=hidden_states.device).tril()
        scores = scores.masked_fill(~causal, torch.finfo(scores.dtype).min)
        attn = self.dropout(torch.softmax(scores.float(), dim=-1).type_as(scores))
        out = torch.matmul(attn, v).transpose(1, 2).reshape(bsz, length, -1)
        return self.o(out)
