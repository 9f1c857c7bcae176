from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class SinkAttentionConfig:
    hidden_size: int = 64
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 16
    sliding_window: int = 8
    rope_theta: float = 150000.0


class SinkAttention(nn.Module):
    """Sliding-window grouped-query attention with a learned sink logit per head.

    The sink takes part in the softmax like one more key, without a value: its column is dropped
    afterwards, so that the weights of a row sum to less than one. ``head_dim`` is independent of
    ``hidden_size / num_heads``. The window counts the token itself.
    """

    def __init__(self, config: SinkAttentionConfig = SinkAttentionConfig()):
        super().__init__()
        self.cfg = config
        self.rep = config.num_heads // config.num_kv_heads
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = nn.Linear(config.hidden_size, width)
        self.out = nn.Linear(config.num_heads * config.head_dim, config.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(config.num_heads))
        self.sm_scale = config.head_dim ** -0.5
        half = torch.arange(0, config.head_dim, 2).float() / config.head_dim
        self.register_buffer("inv_freq", config.rope_theta ** -half, persistent=False)

    def rope(self, x):
        # (batch, length, heads, head_dim)
        t = torch.arange(x.shape[1], device=x.device).float()
        ang = torch.outer(t, self.inv_freq.float())[:, None, :]
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    def forward(self, x):
        c = self.cfg
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, -1, c.head_dim).split(
            [c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=2
        )
        q, k = self.rope(q), self.rope(k)
        q = q.reshape(b, n, c.num_kv_heads, self.rep, c.head_dim)

        qk = torch.einsum("bqgrd,bkgd->bgrqk", q, k) * self.sm_scale
        idx = torch.arange(n, device=x.device)
        age = idx[:, None] - idx[None, :]
        qk = qk.masked_fill((age < 0) | (age >= c.sliding_window), float("-inf"))

        sink = self.sinks.view(1, c.num_kv_heads, self.rep, 1, 1).expand(b, -1, -1, n, 1)
        w = torch.cat((qk, sink.to(qk.dtype)), dim=-1)
        w = torch.softmax(w, dim=-1)[..., :-1]

        y = torch.einsum("bgrqk,bkgd->bqgrd", w, v)
        return self.out(y.reshape(b, n, c.num_heads * c.head_dim))
