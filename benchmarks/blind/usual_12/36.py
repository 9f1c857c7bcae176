from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn


@dataclass
class RollingState:
    k: torch.Tensor
    v: torch.Tensor
    pos: int = 0


class RollingBufferAttention(nn.Module):
    """Sliding-window attention with a rolling buffer of ``window`` slots.

    Token ``t`` attends to the last ``window`` tokens, itself included. Its key is written to the
    slot ``t % window``, so memory stays constant however long the generation is. Keys are
    rotated before they are stored, the order of the slots therefore does not matter.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8, rope_base: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        half = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        self.register_buffer("inv_freq", rope_base**-half, persistent=False)

    def init_state(self, batch_size, device=None, dtype=None):
        shape = (batch_size, self.num_heads, self.window, self.head_dim)
        zeros = torch.zeros(shape, device=device, dtype=dtype)
        return RollingState(zeros, zeros.clone())

    def rotate(self, x, pos):
        angle = pos * self.inv_freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def step(self, x_t, state):
        b = x_t.shape[0]
        q, k, v = self.qkv(x_t).view(b, 3, self.num_heads, self.head_dim).unbind(1)
        q, k = self.rotate(q, state.pos), self.rotate(k, state.pos)

        slot = state.pos % self.window
        state.k[:, :, slot] = k
        state.v[:, :, slot] = v
        filled = slot + 1
        keys, values = state.k[:, :, :filled], state.v[:, :, :filled]

        logits = (keys @ q.unsqueeze(-1)).squeeze(-1) * self.head_dim**-0.5
        out = logits.softmax(dim=-1).unsqueeze(2) @ values
        state.pos += 1
        return self.proj(out.reshape(b, -1))

    @torch.no_grad()
    def forward(self, x: torch.Tensor, state: Optional[RollingState] = None):
        """x: (batch, time, dim). Returns the outputs and the state to go on with."""
        if state is None:
            state = self.init_state(x.shape[0], x.device, x.dtype)
        outs = [self.step(x[:, t], state) for t in range(x.shape[1])]
        return torch.stack(outs, dim=1), state
