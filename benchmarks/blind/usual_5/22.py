from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

State = Tuple[torch.Tensor, torch.Tensor]


class ChunkedLinearAttention(nn.Module):
    """Causal linear attention, quadratic within a chunk and recurrent between chunks.

    The state (sum of phi(k) v^T, sum of phi(k)) is returned and can be handed to the
    next call, which then continues the sequence.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, chunk: int = 16):
        super().__init__()
        self.num_heads = num_heads
        self.chunk = chunk
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    @staticmethod
    def phi(x):
        return F.elu(x) + 1.0

    def forward(self, x: torch.Tensor, state: Optional[State] = None) -> Tuple[torch.Tensor, State]:
        b, t, c = x.shape
        h = self.num_heads
        q, k, v = self.in_proj(x).view(b, t, 3, h, c // h).permute(2, 0, 3, 1, 4)
        q, k = self.phi(q), self.phi(k)
        if state is None:
            s = x.new_zeros(b, h, c // h, c // h)
            z = x.new_zeros(b, h, c // h)
        else:
            s, z = state

        pieces = []
        for qc, kc, vc in zip(q.split(self.chunk, 2), k.split(self.chunk, 2), v.split(self.chunk, 2)):
            local = (qc @ kc.transpose(-1, -2)).tril()
            num = local @ vc + qc @ s
            den = local.sum(-1) + (qc @ z.unsqueeze(-1)).squeeze(-1)
            pieces.append(num / den.clamp(min=1e-6).unsqueeze(-1))
            s = s + kc.transpose(-1, -2) @ vc
            z = z + kc.sum(dim=2)

        y = torch.cat(pieces, dim=2).transpose(1, 2).reshape(b, t, c)
        return self.out_proj(y), (s, z)
