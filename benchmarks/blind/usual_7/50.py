import math
from typing import Optional, Tuple

import torch
from torch import nn


class T5LayerNorm(nn.Module):
    """No mean subtraction and no bias."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(self.weight.dtype)


class T5EncoderSelfAttention(nn.Module):
    """
    T5 encoder self-attention layer with pre-norm and residual. The logits are not divided by sqrt(d_kv): the factor
    sits in the initialisation of ``q``.

    attention_mask: (batch, seq), 1 for tokens and 0 for padding. The returned ``position_bias`` already holds that
    mask; the model passes it to the later layers, which have no table of their own.
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=4, num_buckets=32, max_distance=128, dropout_rate=0.1,
                 has_relative_attention_bias=True):
        super().__init__()
        self.d_kv, self.n_heads = d_kv, num_heads
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner = d_kv * num_heads
        self.layer_norm = T5LayerNorm(d_model)
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads) if has_relative_attention_bias else None
        self.dropout = nn.Dropout(dropout_rate)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)

    def _bucket(self, relative_position):
        half = self.num_buckets // 2
        ret = (relative_position > 0).to(torch.long) * half
        n = relative_position.abs()
        max_exact = half // 2
        large = max_exact + (
            torch.log(n.clamp(min=1).float() / max_exact) / math.log(self.max_distance / max_exact)
            * (half - max_exact)
        ).to(torch.long)
        return ret + torch.where(n < max_exact, n, large.clamp(max=half - 1))

    def _bias(self, seq, like, attention_mask):
        if self.relative_attention_bias is None:
            bias = torch.zeros(1, self.n_heads, seq, seq, dtype=like.dtype, device=like.device)
        else:
            pos = torch.arange(seq, device=like.device)
            buckets = self._bucket(pos[None, :] - pos[:, None])
            bias = self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)
        if attention_mask is not None:
            bias = bias + (1.0 - attention_mask[:, None, None, :].to(like.dtype)) * -1e9
        return bias

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_bias: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        B, T, _ = hidden_states.shape
        normed = self.layer_norm(hidden_states)
        q, k, v = (p(normed).view(B, T, self.n_heads, self.d_kv).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2)
        if position_bias is None:
            position_bias = self._bias(T, scores, attention_mask)
        weights = self.dropout((scores + position_bias).float().softmax(dim=-1).type_as(scores))
        out = self.o((weights @ v).transpose(1, 2).reshape(B, T, -1))
        return hidden_states + self.dropout(out), position_bias
