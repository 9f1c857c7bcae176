import math
from typing import Optional

import torch
from torch import nn


class SinkAttentionBlock(nn.Module):
    """GPT-OSS style attention with one learned sink logit per head.

    The sink takes part in the softmax and is then thrown away: the weights of the real keys sum to
    less than one, a head can choose to attend to nothing. ``sliding_window=0`` means full causal attention,
    otherwise a token sees itself and the ``sliding_window - 1`` tokens before it.
    """

    def __init__(
        self,
        hidden_size: int = 128,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 2,
        head_dim: int = 16,
        sliding_window: int = 0,
        rope_theta: float = 150000.0,
        norm_eps: float = 1e-5,
    ):
        super().__init__()
        assert num_attention_heads % num_key_value_heads == 0
        self.n_q = num_attention_heads
        self.n_kv = num_key_value_heads
        self.head_dim = head_dim
        self.sliding_window = sliding_window
        self.rope_theta = rope_theta
        self.norm_eps = norm_eps
        self.norm_scale = nn.Parameter(torch.ones(hidden_size))
        self.sinks = nn.Parameter(torch.zeros(num_attention_heads))
        self.qkv = nn.Linear(hidden_size, head_dim * (self.n_q + 2 * self.n_kv))
        self.out = nn.Linear(head_dim * self.n_q, hidden_size)
        self.sm_scale = 1.0 / math.sqrt(head_dim)

    def _norm(self, x):
        t = x.float()
        t = t * torch.rsqrt(t.pow(2).mean(dim=-1, keepdim=True) + self.norm_eps)
        return (t * self.norm_scale).to(x.dtype)

    def _rotary(self, x):
        """x: (batch, tokens, heads, head_dim)"""
        half = self.head_dim // 2
        exponent = torch.arange(half, dtype=torch.float32, device=x.device) / half
        angle = torch.outer(torch.arange(x.shape[1], device=x.device).float(), self.rope_theta ** -exponent)
        cos = angle.cos()[None, :, None].to(x.dtype)
        sin = angle.sin()[None, :, None].to(x.dtype)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    def _sdpa(self, q, k, v, padding_mask):
        b, n = q.shape[:2]
        q = q.view(b, n, self.n_kv, self.n_q // self.n_kv, self.head_dim)
        qk = torch.einsum("bqhmd,bkhd->bhmqk", q, k) * self.sm_scale

        blocked = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        if self.sliding_window > 0:
            blocked = blocked | torch.ones_like(blocked).tril(-self.sliding_window)
        blocked = blocked[None]
        if padding_mask is not None:
            blocked = blocked | ~padding_mask.bool()[:, None, :]
        # rows with nothing left are fine, all their mass goes to the sink
        qk = qk.masked_fill(blocked[:, None, None], float("-inf"))

        sinks = self.sinks.view(1, self.n_kv, -1, 1, 1).expand(b, -1, -1, n, 1).to(qk.dtype)
        weights = torch.softmax(torch.cat([qk, sinks], dim=-1), dim=-1)[..., :-1]
        return torch.einsum("bhmqk,bkhd->bqhmd", weights, v).reshape(b, n, -1)

    def forward(self, x: torch.Tensor, padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (batch, tokens, hidden); padding_mask: (batch, tokens), True / 1 for real tokens."""
        b, n, _ = x.shape
        qkv = self.qkv(self._norm(x))
        q, k, v = qkv.split([self.n_q * self.head_dim, self.n_kv * self.head_dim, self.n_kv * self.head_dim], dim=-1)
        q = self._rotary(q.reshape(b, n, self.n_q, self.head_dim))
        k = self._rotary(k.reshape(b, n, self.n_kv, self.head_dim))
        v = v.reshape(b, n, self.n_kv, self.head_dim)
        return x + self.out(self._sdpa(q, k, v, padding_mask))
