from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class ParallelMQABlock(nn.Module):
    """PaLM style block: one norm feeds attention and SwiGLU MLP, which run side by side, and one fused
    input and output projection serves both. All query heads share a single key/value head. No biases.

    ``past`` holds the keys and values of earlier tokens. A single new token may look at everything, so the
    mask is only built for longer inputs.
    """

    def __init__(self, dim: int = 64, n_head: int = 4, ff_mult: int = 4):
        super().__init__()
        self.n_head = n_head
        self.head_dim = dim // n_head
        ff = ff_mult * dim
        self.splits = (dim, self.head_dim, self.head_dim, ff, ff)
        self.norm = nn.LayerNorm(dim, bias=False)
        self.w_in = nn.Linear(dim, sum(self.splits), bias=False)
        self.w_out = nn.Linear(dim + ff, dim, bias=False)

    def forward(
        self, x: torch.Tensor, past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        b, t, c = x.shape
        q, k, v, gate, up = self.w_in(self.norm(x)).split(self.splits, dim=-1)
        q = q.view(b, t, self.n_head, self.head_dim).transpose(1, 2)
        k, v = k.unsqueeze(1), v.unsqueeze(1)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        present = (k, v)

        mask = None
        if t > 1:
            s = k.shape[2]
            mask = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(diagonal=s - t)
        y = F.scaled_dot_product_attention(
            q, k.expand(-1, self.n_head, -1, -1), v.expand(-1, self.n_head, -1, -1), attn_mask=mask
        )
        y = y.transpose(1, 2).reshape(b, t, c)
        return x + self.w_out(torch.cat([y, F.silu(gate) * up], dim=-1)), present
