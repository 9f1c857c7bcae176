from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class KNNMemory:
    """First-in-first-out store of keys and values, searched exactly. One instance per batch."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.keys: Optional[torch.Tensor] = None
        self.values: Optional[torch.Tensor] = None

    def clear(self):
        self.keys = self.values = None

    def add(self, k: torch.Tensor, v: torch.Tensor):
        k, v = k.detach(), v.detach()
        if self.keys is not None:
            k = torch.cat([self.keys, k], dim=2)
            v = torch.cat([self.values, v], dim=2)
        self.keys, self.values = k[:, :, -self.capacity:], v[:, :, -self.capacity:]

    def search(self, q: torch.Tensor, topk: int):
        topk = min(topk, self.keys.shape[2])
        sim = q @ self.keys.transpose(-1, -2)
        idx = sim.topk(topk, dim=-1).indices
        b, h, t, n = idx.shape
        flat = idx.reshape(b, h, t * n, 1).expand(-1, -1, -1, self.keys.shape[-1])
        k = self.keys.gather(2, flat).view(b, h, t, n, -1)
        v = self.values.gather(2, flat).view(b, h, t, n, -1)
        return k, v


class MemorizingAttention(nn.Module):
    """kNN-augmented causal attention (Memorizing Transformers).

    A document is fed segment by segment, ``[B, T, dim]`` each. A segment attends causally to itself and,
    through the memory, to the tokens of the segments before it; a learned gate per head mixes the two.
    Call ``memory.clear()`` between documents.
    """

    def __init__(self, dim: int = 64, heads: int = 4, topk: int = 8, capacity: int = 512):
        super().__init__()
        self.heads = heads
        self.topk = topk
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.gate = nn.Parameter(torch.zeros(heads))
        self.memory = KNNMemory(capacity)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1) / self.scale, F.normalize(k, dim=-1)

        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        local = (q @ k.transpose(-1, -2)).masked_fill(future, float("-inf"))
        out = local.softmax(dim=-1) @ v

        self.memory.add(k, v)
        mem_k, mem_v = self.memory.search(q, self.topk)
        sim = torch.einsum("bhtd,bhtnd->bhtn", q, mem_k)
        mem_out = torch.einsum("bhtn,bhtnd->bhtd", sim.softmax(dim=-1), mem_v)

        g = torch.sigmoid(self.gate).view(1, -1, 1, 1)
        out = g * mem_out + (1 - g) * out
        return self.to_out(out.transpose(1, 2).reshape(b, t, d))
