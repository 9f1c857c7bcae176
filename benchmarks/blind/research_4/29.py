from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class KNNMemoryAttention(nn.Module):
    """Attention layer with a non-differentiable memory, after the Memorizing Transformer.

    A document comes in consecutive segments. Within a segment attention is causal; in addition each query
    retrieves the ``top_k`` best keys among the previous segments, and a gate per head mixes the two results.
    Call ``reset`` between documents.

    Args:
        dim: model width.
        num_heads: number of heads.
        top_k: retrieved pairs per query and head.
        memory_size: pairs that are kept; the oldest are dropped.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, top_k: int = 8, memory_size: int = 512):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.top_k = top_k
        self.memory_size = memory_size
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.gate = nn.Parameter(torch.zeros(num_heads, 1, 1))
        self.mem_k: Optional[torch.Tensor] = None
        self.mem_v: Optional[torch.Tensor] = None

    def reset(self) -> None:
        self.mem_k = self.mem_v = None

    def remember(self, k: torch.Tensor, v: torch.Tensor) -> None:
        k, v = k.detach(), v.detach()
        if self.mem_k is not None:
            k = torch.cat([self.mem_k, k], dim=2)
            v = torch.cat([self.mem_v, v], dim=2)
        self.mem_k = k[:, :, -self.memory_size :]
        self.mem_v = v[:, :, -self.memory_size :]

    def recall(self, q: torch.Tensor) -> torch.Tensor:
        b, h, t, d = q.shape
        sim = q @ self.mem_k.transpose(-1, -2) * d**-0.5
        best, idx = sim.topk(min(self.top_k, sim.size(-1)), dim=-1)
        values = self.mem_v.unsqueeze(2).expand(b, h, t, -1, d)
        values = values.gather(3, idx.unsqueeze(-1).expand(-1, -1, -1, -1, d))
        return torch.einsum("bhtk,bhtkd->bhtd", best.softmax(dim=-1), values)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, dim = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        k = F.normalize(k, dim=-1) * self.head_dim**0.5

        local = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        self.remember(k, v)
        far = self.recall(q)

        g = torch.sigmoid(self.gate)
        y = g * far + (1 - g) * local
        return self.to_out(y.transpose(1, 2).reshape(b, t, dim))
