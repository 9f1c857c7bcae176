import math

import torch
from torch import nn


class T5DecoderSelfAttention(nn.Module):
    """Causal self-attention of the T5 decoder with its relative position bias.

    The scores are not divided by sqrt(d_kv), the initialisation takes care of that.
    """

    def __init__(self, d_model=128, d_kv=16, num_heads=8, num_buckets=32, max_distance=128, dropout_rate=0.1):
        super().__init__()
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.inner_dim = num_heads * d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.dropout = nn.Dropout(dropout_rate)

        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        for lin in (self.k, self.v):
            nn.init.normal_(lin.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)

    def _relative_position_bucket(self, relative_position):
        """
        Translate relative position (memory_position - query_position) to a bucket number.
        Small distances get a bucket each, larger ones share logarithmically growing buckets.
        """
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = self.num_buckets // 2
        is_small = relative_position < max_exact
        relative_position_if_large = max_exact + (
            torch.log(relative_position.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (self.num_buckets - max_exact)
        ).to(torch.long)
        relative_position_if_large = relative_position_if_large.clamp(max=self.num_buckets - 1)
        return torch.where(is_small, relative_position, relative_position_if_large)

    def compute_bias(self, seq_len, device):
        context_position = torch.arange(seq_len, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(seq_len, dtype=torch.long, device=device)[None, :]
        relative_position = context_position - memory_position
        values = self.relative_attention_bias(self._relative_position_bucket(relative_position))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states):
        batch_size, seq_len, _ = hidden_states.shape
        q = self.q(hidden_states).view(batch_size, seq_len, self.n_heads, self.d_kv).transpose(1, 2)
        k = self.k(hidden_states).view(batch_size, seq_len, self.n_heads, self.d_kv).transpose(1, 2)
        v = self.v(hidden_states).view(batch_size, seq_len, self.n_heads, self.d_kv).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(seq_len, scores.device)
        causal = torch.ones(seq_len, seq_len, dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, torch.finfo(scores.dtype).min)

        attn_weights = self.dropout(nn.functional.softmax(scores.float(), dim=-1).type_as(scores))
        attn_output = torch.matmul(attn_weights, v)
        attn_output = attn_output.transpose(1, 2).contiguous().view(batch_size, seq_len, self.inner_dim)
        return self.o(attn_output)
