import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class InterpretableMultiHeadAttention(nn.Module):
    """Interpretable multi-head attention of the Temporal Fusion Transformer.

    Every head has its own query and key projection, but all heads read one and the same value
    projection.  The heads are averaged instead of concatenated, so that the mean of the attention
    matrices is exactly the matrix applied to the values and can be shown to the user.

    ``mask`` follows the convention of the original code: ``True`` marks the entries that may NOT be
    attended to.  Shape ``[T_q, T_k]`` or ``[B, T_q, T_k]``.
    """

    def __init__(self, d_model: int = 64, n_head: int = 4, dropout: float = 0.1):
        super().__init__()
        assert d_model % n_head == 0
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.q_proj = nn.ModuleList([nn.Linear(d_model, self.d_head) for _ in range(n_head)])
        self.k_proj = nn.ModuleList([nn.Linear(d_model, self.d_head) for _ in range(n_head)])
        self.v_proj = nn.Linear(d_model, self.d_head)
        self.out_proj = nn.Linear(self.d_head, d_model, bias=False)
        self.attn_dropout = nn.Dropout(dropout)
        self.out_dropout = nn.Dropout(dropout)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        value = self.v_proj(v)
        heads, maps = [], []
        for proj_q, proj_k in zip(self.q_proj, self.k_proj):
            scores = torch.bmm(proj_q(q), proj_k(k).transpose(1, 2)) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(mask, -1e9)
            weights = scores.softmax(dim=-1)
            maps.append(weights)
            heads.append(torch.bmm(self.attn_dropout(weights), value))

        output = torch.stack(heads, dim=0).mean(dim=0)
        attention = torch.stack(maps, dim=1).mean(dim=1)
        return self.out_dropout(self.out_proj(output)), attention
