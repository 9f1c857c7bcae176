import math
from typing import Optional

import torch
from torch import nn


class MemoryCrossAttention(nn.Module):
    """Cross-attention of a decoder to the encoder output.

    During generation the memory is the same at every step, so its projections are
    computed once and reused outside of training.

    Args:
        d_model: decoder width.
        n_heads: number of heads.
        d_memory: encoder width, ``d_model`` if omitted.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4, d_memory: Optional[int] = None, dropout: float = 0.1):
        super().__init__()
        assert d_model % n_heads == 0
        d_memory = d_model if d_memory is None else d_memory
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_memory, d_model)
        self.v_proj = nn.Linear(d_memory, d_model)
        self.o_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self._kv = None
        self._kv_shape = None

    def split(self, t: torch.Tensor) -> torch.Tensor:
        return t.view(t.size(0), t.size(1), self.n_heads, self.d_head).transpose(1, 2)

    def project_memory(self, memory: torch.Tensor):
        if self.training:
            self._kv = None
            return self.split(self.k_proj(memory)), self.split(self.v_proj(memory))
        if self._kv is None or self._kv_shape != memory.shape:
            self._kv = (self.split(self.k_proj(memory)), self.split(self.v_proj(memory)))
            self._kv_shape = memory.shape
        return self._kv

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor,
        memory_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """memory_mask: bool (batch, memory_len), True for positions to attend to."""
        b, t, d = x.shape
        q = self.split(self.q_proj(x))
        k, v = self.project_memory(memory)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        if memory_mask is not None:
            scores = scores.masked_fill(~memory_mask[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = self.dropout(scores.softmax(dim=-1))
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, t, d))
