from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


def rotate_every_two(x: torch.Tensor) -> torch.Tensor:
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class MultiScaleRetention(nn.Module):
    """Multi-scale retention (RetNet).

    ``forward`` computes the parallel form for a whole sequence; ``step`` consumes one token and
    a (state, position) pair. Both give the same outputs.
    """

    def __init__(self, embed_dim: int = 256, num_heads: int = 4, value_factor: int = 2):
        super().__init__()
        assert embed_dim % num_heads == 0
        self.num_heads = num_heads
        self.key_dim = embed_dim // num_heads
        self.value_dim = embed_dim * value_factor // num_heads
        assert self.key_dim % 2 == 0
        self.scaling = self.key_dim**-0.5

        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim * value_factor, bias=False)
        self.g_proj = nn.Linear(embed_dim, embed_dim * value_factor, bias=False)
        self.out_proj = nn.Linear(embed_dim * value_factor, embed_dim, bias=False)

        angle = 1.0 / (10000 ** torch.linspace(0, 1, self.key_dim // 2))
        self.register_buffer("angle", angle.repeat_interleave(2), persistent=False)
        decay = torch.log(1 - 2 ** (-5 - torch.arange(num_heads, dtype=torch.float)))
        self.register_buffer("decay", decay, persistent=False)

    def _project(self, x: torch.Tensor, offset: int):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.num_heads, self.key_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_heads, self.key_dim).transpose(1, 2) * self.scaling
        v = self.v_proj(x).view(b, t, self.num_heads, self.value_dim).transpose(1, 2)
        index = torch.arange(offset, offset + t, device=x.device, dtype=torch.float)
        theta = index[:, None] * self.angle
        sin, cos = theta.sin().to(x.dtype), theta.cos().to(x.dtype)
        q = q * cos + rotate_every_two(q) * sin
        k = k * cos + rotate_every_two(k) * sin
        return q, k, v

    def _output(self, x: torch.Tensor, ret: torch.Tensor) -> torch.Tensor:
        # per-head normalisation without affine (the "group norm" of the paper)
        b, _, t, _ = ret.shape
        ret = F.layer_norm(ret, (self.value_dim,)).transpose(1, 2).reshape(b, t, -1)
        return self.out_proj(F.silu(self.g_proj(x)) * ret)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self._project(x, 0)
        index = torch.arange(x.size(1), device=x.device)
        distance = index[:, None] - index[None, :]
        mask = torch.exp(distance.clamp(min=0) * self.decay[:, None, None])
        mask = mask.masked_fill(distance < 0, 0.0).to(x.dtype)
        ret = (q @ k.transpose(-1, -2) * mask) @ v
        return self._output(x, ret)

    def step(
        self, x: torch.Tensor, past: Optional[Tuple[torch.Tensor, int]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, int]]:
        """x: (batch, 1, embed_dim)."""
        if past is None:
            state = x.new_zeros(x.size(0), self.num_heads, self.key_dim, self.value_dim)
            pos = 0
        else:
            state, pos = past
        q, k, v = self._project(x, pos)
        gamma = self.decay.exp().view(1, -1, 1, 1).to(x.dtype)
        state = gamma * state + k.transpose(-1, -2) @ v
        return self._output(x, q @ state), (state, pos + 1)
