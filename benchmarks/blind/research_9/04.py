from typing import Optional

import torch
from torch import nn


class SinkAttention(nn.Module):
    """Grouped-query attention with one learned sink logit per query head.

    The sink takes part in the softmax and is thrown away afterwards, so the weights over the real
    keys add up to *less* than one: a head that finds nothing relevant can output (almost) zero.
    With ``window`` set, a token sees itself and the ``window - 1`` tokens before it.
    """

    def __init__(
        self,
        hidden_size: int = 64,
        num_heads: int = 8,
        num_kv_heads: int = 2,
        head_dim: Optional[int] = None,
        window: Optional[int] = None,
    ):
        super().__init__()
        self.n_q = num_heads
        self.n_kv = num_kv_heads
        self.group = num_heads // num_kv_heads
        self.head_dim = head_dim or hidden_size // num_heads
        self.window = window
        self.sm_scale = self.head_dim ** -0.5
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.qkv = nn.Linear(hidden_size, (self.n_q + 2 * self.n_kv) * self.head_dim)
        self.out = nn.Linear(self.n_q * self.head_dim, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).split(
            [self.n_q * self.head_dim, self.n_kv * self.head_dim, self.n_kv * self.head_dim], dim=-1
        )
        # query head h reads kv head h // group
        q = q.view(B, T, self.n_kv, self.group, self.head_dim)
        k = k.view(B, T, self.n_kv, self.head_dim)
        v = v.view(B, T, self.n_kv, self.head_dim)

        qk = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.sm_scale
        i = torch.arange(T, device=x.device)[:, None]
        j = torch.arange(T, device=x.device)[None, :]
        banned = j > i
        if self.window is not None:
            banned = banned | (i - j >= self.window)
        qk = qk.masked_fill(banned, float("-inf"))

        sink = self.sinks.view(1, self.n_kv, self.group, 1, 1).expand(B, -1, -1, T, 1)
        w = torch.cat([qk, sink.to(qk.dtype)], dim=-1).softmax(dim=-1)[..., :-1]
        y = torch.einsum("bhgqk,bkhd->bqhgd", w, v).reshape(B, T, -1)
        return self.out(y)
