from typing import Optional

import torch
from torch import Tensor, nn


class BlockedAttention(nn.Module):
    """Multi-head attention that uses the PyTorch convention for boolean masks.

    ``blocked`` has the meaning of ``key_padding_mask`` in ``nn.MultiheadAttention``:
    ``True`` marks a key that must NOT be looked at.  It has shape ``(B, S)``.
    ``blocked_pairs`` of shape ``(L, S)`` works the same way for single query/key pairs,
    e.g. ``torch.ones(L, L, dtype=torch.bool).triu(1)`` gives causal attention.
    """

    def __init__(self, dim: int = 48, num_heads: int = 6, bias: bool = False):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim {dim} is not a multiple of num_heads {num_heads}")
        self.h = num_heads
        self.d = dim // num_heads
        self.to_q = nn.Linear(dim, dim, bias=bias)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def forward(
        self,
        x: Tensor,
        memory: Optional[Tensor] = None,
        blocked: Optional[Tensor] = None,
        blocked_pairs: Optional[Tensor] = None,
    ) -> Tensor:
        memory = x if memory is None else memory
        B, L, _ = x.shape
        S = memory.shape[1]

        q = self.to_q(x).view(B, L, self.h, self.d).permute(0, 2, 1, 3)
        k, v = self.to_kv(memory).chunk(2, dim=-1)
        k = k.view(B, S, self.h, self.d).permute(0, 2, 3, 1)
        v = v.view(B, S, self.h, self.d).permute(0, 2, 1, 3)

        logits = (q * self.d ** -0.5) @ k

        stop = torch.zeros(1, 1, L, S, dtype=torch.bool, device=x.device)
        if blocked is not None:
            stop = stop | blocked.bool()[:, None, None, :]
        if blocked_pairs is not None:
            stop = stop | blocked_pairs.bool()[None, None]
        logits = logits.masked_fill(stop, torch.finfo(logits.dtype).min)

        y = logits.softmax(-1) @ v
        return self.out(y.permute(0, 2, 1, 3).flatten(2))
