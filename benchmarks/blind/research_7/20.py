import math
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class EncoderConfig:
    d_model: int = 64
    d_kv: int = 8
    num_heads: int = 6
    num_buckets: int = 32
    max_distance: int = 128
    dropout: float = 0.0


class RMSNorm(nn.Module):
    """Scale only, no mean subtraction and no bias."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        var = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(var + self.eps)).to(self.weight.dtype)


class EncoderSelfAttentionLayer(nn.Module):
    """T5 encoder layer: pre-norm, unscaled dot products (1/sqrt(d_kv) is absorbed by the
    initialisation of q), bidirectional bucketed bias. The inner width num_heads * d_kv is
    independent of d_model."""

    def __init__(self, config: EncoderConfig = EncoderConfig()):
        super().__init__()
        self.cfg = config
        inner = config.num_heads * config.d_kv
        self.layer_norm = RMSNorm(config.d_model)
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)
        self.rel_bias = nn.Embedding(config.num_buckets, config.num_heads)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.q.weight, std=(config.d_model * config.d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=config.d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=config.d_model ** -0.5)

    def _buckets(self, n, device):
        pos = torch.arange(n, device=device)
        rel = pos[None, :] - pos[:, None]
        half = self.cfg.num_buckets // 2
        offset = (rel > 0).long() * half
        dist = rel.abs()
        exact = half // 2
        far = exact + (
            torch.log(dist.clamp(min=1).float() / exact)
            / math.log(self.cfg.max_distance / exact) * (half - exact)
        ).long()
        return offset + torch.where(dist < exact, dist, far.clamp(max=half - 1))

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: [B, T], 1 = token, 0 = padding."""
        B, T, _ = hidden_states.shape
        h = self.layer_norm(hidden_states)
        q, k, v = (p(h).view(B, T, self.cfg.num_heads, self.cfg.d_kv).transpose(1, 2) for p in (self.q, self.k, self.v))

        bias = self.rel_bias(self._buckets(T, h.device)).permute(2, 0, 1)[None]
        if attention_mask is not None:
            inverted = 1.0 - attention_mask[:, None, None, :].to(bias.dtype)
            bias = bias + inverted * torch.finfo(bias.dtype).min

        scores = q @ k.mT + bias
        probs = self.dropout(scores.float().softmax(-1).type_as(scores))
        out = (probs @ v).transpose(1, 2).reshape(B, T, -1)
        return hidden_states + self.dropout(self.o(out))
