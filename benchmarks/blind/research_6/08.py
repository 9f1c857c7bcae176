import math
from typing import Optional, Tuple

import torch
from torch import nn


class InterpretableMultiHeadAttention(nn.Module):
    """Multi-head attention of the Temporal Fusion Transformer.

    The heads have their own queries and keys but one value projection in common, and
    their outputs are averaged (not concatenated), so that the averaged attention matrix
    can be read as the importance of the time steps.

    mask: bool [B, Tq, Tk] or [Tq, Tk], True = blocked.
    """

    def __init__(self, n_head: int = 4, d_model: int = 64, dropout: float = 0.0):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_k = self.d_q = self.d_v = d_model // n_head
        self.dropout = nn.Dropout(p=dropout)

        self.v_layer = nn.Linear(d_model, self.d_v)
        self.q_layers = nn.ModuleList([nn.Linear(d_model, self.d_q) for _ in range(n_head)])
        self.k_layers = nn.ModuleList([nn.Linear(d_model, self.d_k) for _ in range(n_head)])
        self.w_h = nn.Linear(self.d_v, d_model, bias=False)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        vs = self.v_layer(v)
        heads, attns = [], []
        for i in range(self.n_head):
            qs = self.q_layers[i](q)
            ks = self.k_layers[i](k)
            score = torch.bmm(qs, ks.transpose(1, 2)) / math.sqrt(self.d_k)
            if mask is not None:
                score = score.masked_fill(mask, -1e9)
            attn = torch.softmax(score, dim=2)
            heads.append(torch.bmm(self.dropout(attn), vs))
            attns.append(attn)

        head = torch.stack(heads, dim=2)
        attn = torch.stack(attns, dim=2)

        outputs = head.mean(dim=2)
        outputs = self.w_h(outputs)
        return outputs, attn.mean(dim=2)
