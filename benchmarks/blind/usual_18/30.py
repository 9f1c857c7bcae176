import math
from typing import Optional

import torch
from torch import Tensor, nn


def rope(x: Tensor, positions: Tensor, theta: float = 10000.0) -> Tensor:
    """Rotate x (tokens, heads, dim) by the given integer positions (tokens,)."""
    half = x.size(-1) // 2
    inv_freq = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None].float() * inv_freq
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    x1, x2 = x[..., :half].float(), x[..., half:].float()
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).type_as(x)


class PackedCausalAttention(nn.Module):
    """Causal attention over several documents packed into one row without padding.

    x:          (total_tokens, dim)
    cu_seqlens: (num_docs + 1,) cumulative lengths, [0, len_0, len_0 + len_1, ..., total_tokens].
                None means a single document.
    A token sees the earlier tokens of its own document and itself; rotary positions restart
    with every document.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        total = x.size(0)
        index = torch.arange(total, device=x.device)
        if cu_seqlens is None:
            cu_seqlens = torch.tensor([0, total], device=x.device)
        cu_seqlens = cu_seqlens.to(index.dtype)

        doc = torch.searchsorted(cu_seqlens[1:].contiguous(), index)
        positions = index - cu_seqlens[doc]

        q, k, v = self.wqkv(x).view(total, 3, self.num_heads, self.head_dim).unbind(1)
        q, k = rope(q, positions), rope(k, positions)

        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(self.head_dim)
        allowed = (doc[:, None] == doc[None, :]) & (index[:, None] >= index[None, :])
        scores = scores.masked_fill(~allowed, float("-inf"))
        out = torch.einsum("hij,jhd->ihd", scores.softmax(dim=-1), v)
        return self.wo(out.reshape(total, -1))
