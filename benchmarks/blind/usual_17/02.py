import math

import torch
import torch.nn.functional as F
from torch import nn


class T5SelfAttention(nn.Module):
    """T5 encoder self-attention on top of F.scaled_dot_product_attention.

    As in mesh-tensorflow the logits are *not* divided by sqrt(d_kv); the factor is folded
    into the initialisation of ``q``. Hence ``scale=1.0`` below.
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=4, num_buckets=32, max_distance=128,
                 dropout_rate=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.d_kv = d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.dropout_rate = dropout_rate
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)

    def _bucket(self, relative_position):
        half = self.num_buckets // 2
        ret = (relative_position > 0).long() * half
        n = relative_position.abs()
        max_exact = half // 2
        is_small = n < max_exact
        large = max_exact + (
            torch.log(n.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (half - max_exact)
        ).long()
        large = large.clamp(max=half - 1)
        return ret + torch.where(is_small, n, large)

    def compute_bias(self, q_len, k_len, device):
        context = torch.arange(q_len, device=device)[:, None]
        memory = torch.arange(k_len, device=device)[None, :]
        buckets = self._bucket(memory - context)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, seq), 1 for tokens and 0 for padding."""
        bsz, n, _ = hidden_states.shape

        def shape(t):
            return t.view(bsz, n, self.num_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        bias = self.compute_bias(n, n, hidden_states.device).to(q.dtype)
        if attention_mask is not None:
            blocked = attention_mask[:, None, None, :] == 0
            bias = bias.expand(bsz, -1, -1, -1).masked_fill(blocked, torch.finfo(q.dtype).min)
        out = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=bias,
            dropout_p=self.dropout_rate if self.training else 0.0,
            scale=1.0,
        )
        out = out.transpose(1, 2).reshape(bsz, n, -1)
        return self.o(out)
