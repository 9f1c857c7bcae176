"""T5 attention is run through a fused kernel with the default 1/sqrt(d) scale although T5 uses no scale.

huggingface/transformers #46946 (2026)
https://github.com/huggingface/transformers/pull/46946
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class T5LayerNorm(nn.Module):
        def __init__(self, hidden_size, eps=1e-6):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden_size))
            self.variance_epsilon = eps

        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    class T5Attention(nn.Module):
        """As in the T5 paper: relative position bias added to unscaled scores (the scale is folded into the init).

        forward(hidden_states, mask=None): mask additive, (B, 1, 1 or T, T).
        """

        def __init__(self, d_model, d_kv, num_heads, num_buckets=16, max_distance=32):
            super().__init__()
            self.n_heads, self.key_value_proj_dim = num_heads, d_kv
            self.num_buckets, self.max_distance = num_buckets, max_distance
            inner = num_heads * d_kv
            self.q = nn.Linear(d_model, inner, bias=False)
            self.k = nn.Linear(d_model, inner, bias=False)
            self.v = nn.Linear(d_model, inner, bias=False)
            self.o = nn.Linear(inner, d_model, bias=False)
            self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
            nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
            nn.init.normal_(self.k.weight, std=d_model ** -0.5)

        def compute_bias(self, T, device):
            rel = torch.arange(T, device=device)[None, :] - torch.arange(T, device=device)[:, None]
            n = self.num_buckets // 2
            bucket = (rel > 0).long() * n
            rel = rel.abs()
            exact = n // 2
            large = exact + (torch.log(rel.float().clamp(min=1) / exact) / math.log(self.max_distance / exact)
                             * (n - exact)).long()
            bucket = bucket + torch.where(rel < exact, rel, large.clamp(max=n - 1))
            return self.relative_attention_bias(bucket).permute(2, 0, 1)[None]

        def forward(self, hidden_states, mask=None):
            B, T, _ = hidden_states.shape
            q, k, v = (p(hidden_states).view(B, T, self.n_heads, self.key_value_proj_dim).transpose(1, 2)
                       for p in (self.q, self.k, self.v))
            position_bias = self.compute_bias(T, q.device)
            if mask is not None:
                position_bias = position_bias + mask
            position_bias = position_bias.expand(B, -1, -1, -1)
            if rev == 1:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=position_bias)
            else:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=position_bias, scale=1.0)
            return self.o(y.transpose(1, 2).reshape(B, T, -1))

    class T5Block(nn.Module):
        """One T5 encoder block; forward(hidden_states, attention_mask=None), attention_mask (B, T) with 1 = keep."""

        def __init__(self):
            super().__init__()
            self.layer_norm = T5LayerNorm(32)
            self.SelfAttention = T5Attention(32, 16, 4)
            self.ff_norm = T5LayerNorm(32)
            self.wi = nn.Linear(32, 64, bias=False)
            self.wo = nn.Linear(64, 32, bias=False)

        def forward(self, hidden_states, attention_mask=None):
            mask = None
            if attention_mask is not None:
                mask = (1.0 - attention_mask[:, None, None, :].to(hidden_states.dtype)) * torch.finfo(hidden_states.dtype).min
            h = hidden_states + self.SelfAttention(self.layer_norm(hidden_states), mask)
            return h + self.wo(F.relu(self.wi(self.ff_norm(h))))

    torch.manual_seed(0)
    return T5Block()


def broken():
    return _build(1)


def fixed():
    return _build(2)
