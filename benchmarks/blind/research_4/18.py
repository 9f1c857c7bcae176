from typing import Optional, Tuple

import torch
from torch import Tensor, nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        scores = torch.bmm(q, k.transpose(1, 2)) / k.size(-1) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        attn = torch.softmax(scores, dim=2)
        return torch.bmm(self.dropout(attn), v), attn


class InterpretableMultiHeadAttention(nn.Module):
    """Interpretable multi-head attention of the Temporal Fusion Transformer.

    Every head has its own query and key projection, so that heads pick up different temporal patterns; the value
    projection is common to all of them and the head outputs are averaged.

    Args:
        d_model: width of the inputs and of the output.
        n_head: number of heads.
        dropout: dropout on the weights and on the output.
    """

    def __init__(self, d_model: int = 64, n_head: int = 4, dropout: float = 0.1):
        super().__init__()
        self.n_head = n_head
        self.d_k = self.d_v = d_model // n_head
        self.q_layers = nn.ModuleList([nn.Linear(d_model, self.d_k)] * n_head)
        self.k_layers = nn.ModuleList([nn.Linear(d_model, self.d_k)] * n_head)
        self.v_layer = nn.Linear(d_model, self.d_v)
        self.attention = ScaledDotProductAttention(dropout)
        self.w_h = nn.Linear(self.d_v, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        """
        Args:
            q, k, v: [B, T, d_model].
            mask: bool [B, T_q, T_k], True where attention is forbidden.

        Returns:
            the output [B, T_q, d_model] and the weights [B, T_q, n_head, T_k].
        """
        heads, attns = [], []
        vs = self.v_layer(v)
        for i in range(self.n_head):
            head, attn = self.attention(self.q_layers[i](q), self.k_layers[i](k), vs, mask)
            heads.append(head)
            attns.append(attn)
        out = torch.stack(heads, dim=2).mean(dim=2)
        return self.dropout(self.w_h(out)), torch.stack(attns, dim=2)
