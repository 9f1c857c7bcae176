from typing import Optional

import torch
from torch import Tensor, nn


class TimeFirstAttention(nn.Module):
    """
    Attention in time-first layout.

    Args:
        query: (T, B, C)
        memory: (S, B, C), query itself if None
        blocked: bool (T, S), True where attention is NOT allowed
        padding: bool (B, S), True where the memory is padding

    Both masks name what is removed. A query for which everything is removed gets zero weights, hence the
    bias of the output projection alone. Returns the output (T, B, C) and the weights (B, heads, T, S).
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.kv_proj = nn.Linear(embed_dim, 2 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Tensor,
        memory: Optional[Tensor] = None,
        blocked: Optional[Tensor] = None,
        padding: Optional[Tensor] = None,
    ):
        memory = query if memory is None else memory
        T, B, C = query.shape
        S = memory.shape[0]

        q = self.q_proj(query).view(T, B, self.num_heads, self.head_dim) * self.head_dim ** -0.5
        k, v = self.kv_proj(memory).view(S, B, 2, self.num_heads, self.head_dim).unbind(2)

        removed = torch.zeros(B, 1, T, S, dtype=torch.bool, device=query.device)
        if blocked is not None:
            removed = removed | blocked
        if padding is not None:
            removed = removed | padding[:, None, None, :]

        logits = torch.einsum("tbhd,sbhd->bhts", q, k)
        logits = logits.masked_fill(removed, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1).masked_fill(removed, 0.0)

        out = torch.einsum("bhts,sbhd->tbhd", self.dropout(weights), v)
        return self.out_proj(out.reshape(T, B, C)), weights
