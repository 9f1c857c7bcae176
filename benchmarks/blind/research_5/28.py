from typing import NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class KNNMemory(NamedTuple):
    keys: torch.Tensor    # [B, H, M, d], unit length
    values: torch.Tensor  # [B, H, M, d]


class MemorizingAttention(nn.Module):
    """Causal attention over the current segment plus retrieval from earlier segments.

    For every query the ``topk`` most similar keys of the memory are fetched and attended to in a
    separate softmax; a learned gate per head mixes the two results. Queries and keys have unit
    length and the logits are multiplied by a learned temperature instead of ``1/sqrt(d)``. The
    memory is read before the current segment is added to it, and it carries no gradient.

    With an empty memory the layer is plain local attention (the gate is not used).
    """

    def __init__(self, dim: int = 64, heads: int = 4, topk: int = 4, max_memories: int = 64, init_scale: float = 10.0):
        super().__init__()
        self.heads = heads
        self.topk = topk
        self.max_memories = max_memories
        self.log_scale = nn.Parameter(torch.full((heads, 1, 1), init_scale).log())
        self.gate = nn.Parameter(torch.zeros(heads, 1, 1))
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def _retrieve(self, q, scale, memory):
        b, h, t, d = q.shape
        sim = q @ memory.keys.transpose(-1, -2)
        best, index = sim.topk(min(self.topk, sim.size(-1)), dim=-1)
        k = index.size(-1)
        flat = index.reshape(b, h, t * k, 1).expand(-1, -1, -1, d)
        values = memory.values.gather(2, flat).view(b, h, t, k, d)
        weights = (best * scale).softmax(dim=-1)
        return (weights.unsqueeze(-1) * values).sum(dim=-2)

    def _extend(self, memory, k, v):
        k, v = k.detach(), v.detach()
        if memory is not None:
            k = torch.cat([memory.keys, k], dim=2)
            v = torch.cat([memory.values, v], dim=2)
        return KNNMemory(k[:, :, -self.max_memories:], v[:, :, -self.max_memories:])

    def forward(self, x: torch.Tensor, memory: Optional[KNNMemory] = None):
        b, t, _ = x.shape
        h = self.norm(x)
        q, k, v = (
            y.view(b, t, self.heads, -1).transpose(1, 2) for y in (self.to_q(h), *self.to_kv(h).chunk(2, dim=-1))
        )
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        scale = self.log_scale.exp()

        sim = q @ k.transpose(-1, -2) * scale
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        out = sim.masked_fill(future, float("-inf")).softmax(dim=-1) @ v

        if memory is not None:
            g = self.gate.sigmoid()
            out = g * self._retrieve(q, scale, memory) + (1 - g) * out

        out = self.to_out(out.transpose(1, 2).reshape(b, t, -1))
        return x + out, self._extend(memory, k, v)
