from typing import List, Optional

import torch
import torch.nn as nn


class RecurrentLayer(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.o = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        slopes = torch.tensor([2.0 ** (-8.0 * (i + 1) / num_heads) for i in range(num_heads)])
        self.register_buffer("slopes", slopes.view(1, num_heads, 1, 1))

    def forward(self, x, mem):
        B, T, D = x.shape
        ctx = self.norm1(torch.cat([mem, x], dim=1))
        L = ctx.size(1)
        q = self.q(ctx[:, L - T:]).view(B, T, self.num_heads, -1).transpose(1, 2)
        k, v = self.kv(ctx).chunk(2, dim=-1)
        k = k.view(B, L, self.num_heads, -1).transpose(1, 2)
        v = v.view(B, L, self.num_heads, -1).transpose(1, 2)

        q_pos = torch.arange(L - T, L, device=x.device)[:, None]
        k_pos = torch.arange(L, device=x.device)[None, :]
        dist = (q_pos - k_pos).to(x.dtype)
        logits = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5 - self.slopes * dist
        logits = logits.masked_fill(dist < 0, float("-inf"))
        y = (logits.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D)
        x = x + self.o(y)
        return x + self.ff(self.norm2(x))


class SegmentRecurrentEncoder(nn.Module):
    """Observation encoder with segment-level recurrence.

    Each layer additionally attends to its inputs at the last ``mem_len`` time steps.
    Returns the encoded segment and the memories, to be passed to the next call.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, depth: int = 2, mem_len: int = 16):
        super().__init__()
        self.mem_len = mem_len
        self.layers = nn.ModuleList([RecurrentLayer(dim, num_heads) for _ in range(depth)])

    def _update(self, mem, hidden):
        with torch.no_grad():
            joined = torch.cat([mem, hidden], dim=1)
            return joined[:, : self.mem_len].detach()

    def forward(self, x: torch.Tensor, mems: Optional[List[torch.Tensor]] = None):
        if mems is None:
            mems = [x.new_zeros(x.size(0), 0, x.size(2)) for _ in self.layers]
        new_mems = []
        for layer, mem in zip(self.layers, mems):
            new_mems.append(self._update(mem, x))
            x = layer(x, mem)
        return x, new_mems
