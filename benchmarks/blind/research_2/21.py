import math
from typing import Optional

import torch
from torch import nn


def apply_rotary(x, cos, sin):
    x1, x2 = torch.chunk(x, 2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class SinkAttention(nn.Module):
    """Causal GQA with a learned sink logit per head.

    The sink is one more column of the softmax without a value: it only takes probability away, so the rows of
    the remaining weights sum to less than one. Layers with a ``sliding_window`` see the last
    ``sliding_window`` tokens, the current one included.
    """

    def __init__(
        self,
        hidden_size: int = 64,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 16,
        sliding_window: Optional[int] = 128,
        rope_theta: float = 150000.0,
    ):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.sliding_window = sliding_window
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.qkv = nn.Linear(hidden_size, head_dim * (num_heads + 2 * num_kv_heads))
        self.out = nn.Linear(head_dim * num_heads, hidden_size)
        self.sm_scale = 1 / math.sqrt(head_dim)
        freq = 1.0 / rope_theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
        self.register_buffer("freq", freq, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        H, G, D = self.num_heads, self.num_kv_heads, self.head_dim
        q, k, v = self.qkv(x).split([H * D, G * D, G * D], dim=-1)
        q = q.view(B, T, G, H // G, D)
        k = k.view(B, T, G, 1, D)
        v = v.view(B, T, G, D)

        t = torch.arange(T, dtype=torch.float, device=x.device)
        angles = torch.outer(t, self.freq.float())[None, :, None, None, :]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin).squeeze(3)

        mask = torch.triu(torch.full((T, T), -float("inf"), device=x.device, dtype=x.dtype), diagonal=1)
        if self.sliding_window is not None and self.sliding_window > 0:
            mask = mask + torch.tril(
                torch.full((T, T), -float("inf"), device=x.device, dtype=x.dtype), diagonal=-self.sliding_window)

        qk = torch.einsum("bqgmd,bkgd->bgmqk", q, k) * self.sm_scale
        qk = qk + mask
        s = self.sinks.to(qk.dtype).view(1, G, H // G, 1, 1).expand(B, -1, -1, T, 1)
        w = torch.softmax(torch.cat([qk, s], dim=-1), dim=-1)
        w = w[..., :-1]
        attn = torch.einsum("bgmqk,bkgd->bqgmd", w, v)
        return self.out(attn.reshape(B, T, H * D))
