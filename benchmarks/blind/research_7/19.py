from typing import NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class Memory(NamedTuple):
    keys: torch.Tensor    # [B, H, M, d]
    values: torch.Tensor  # [B, H, M, d]


class KNNMemoryAttention(nn.Module):
    """Causal attention over the current segment plus top-k retrieval from earlier segments.

    Retrieval and local attention have their own softmax; a learned gate per head blends the
    two. The memory is returned detached: no gradient flows into earlier segments. Without a
    memory (first segment of a document) only the local result is used.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, topk: int = 8, max_memories: int = 256):
        super().__init__()
        self.num_heads = num_heads
        self.topk = topk
        self.max_memories = max_memories
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.log_scale = nn.Parameter(torch.full((num_heads, 1, 1), 10.0).log())
        self.gate = nn.Parameter(torch.zeros(num_heads, 1, 1))

    def retrieve(self, q, memory: Memory):
        sim = q @ memory.keys.transpose(-1, -2)
        k = min(self.topk, sim.size(-1))
        top_sim, top_idx = sim.topk(k, dim=-1)                       # B H T k
        idx = top_idx.flatten(2).unsqueeze(-1).expand(-1, -1, -1, q.size(-1))
        values = memory.values.gather(2, idx).unflatten(2, (q.size(2), k))
        weights = (top_sim * self.log_scale.exp()).softmax(dim=-1)
        return torch.einsum("bhtk,bhtkd->bhtd", weights, values)

    def forward(self, x, memory: Optional[Memory] = None):
        B, T, D = x.shape
        q, k, v = self.to_qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)

        sim = q @ k.transpose(-1, -2) * self.log_scale.exp()
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        out = sim.masked_fill(future, float("-inf")).softmax(dim=-1) @ v

        if memory is not None:
            g = self.gate.sigmoid()
            out = g * self.retrieve(q, memory) + (1 - g) * out
            keys = torch.cat((memory.keys, k.detach()), dim=2)
            values = torch.cat((memory.values, v.detach()), dim=2)
        else:
            keys, values = k.detach(), v.detach()

        new_memory = Memory(keys[:, :, -self.max_memories:], values[:, :, -self.max_memories:])
        return self.to_out(out.transpose(1, 2).reshape(B, T, D)), new_memory
