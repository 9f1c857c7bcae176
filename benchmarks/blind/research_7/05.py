"""Interpretable multi-head attention of the Temporal Fusion Transformer."""
import torch
import torch.nn as nn


class InterpretableMultiHeadAttention(nn.Module):
    """Every head has its own queries and keys; all heads share one value projection.

    The heads are averaged (not concatenated), which makes the mean attention map an exact
    description of what is mixed. ``mask`` is True where attention is forbidden.
    """

    def __init__(self, d_model: int = 64, n_head: int = 4, dropout: float = 0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.q_layers = nn.ModuleList(nn.Linear(d_model, self.d_head) for _ in range(n_head))
        self.k_layers = nn.ModuleList(nn.Linear(d_model, self.d_head) for _ in range(n_head))
        self.v_layer = nn.Linear(d_model, self.d_head)
        self.w_h = nn.Linear(self.d_head, d_model, bias=False)
        self.attn_dropout = nn.Dropout(dropout)
        self.out_dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        value = self.v_layer(v)
        heads, maps = [], []
        for q_layer, k_layer in zip(self.q_layers, self.k_layers):
            scores = torch.bmm(q_layer(q), k_layer(k).transpose(1, 2)) / self.d_head ** 0.5
            if mask is not None:
                scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            weights = torch.softmax(scores, dim=-1)
            maps.append(weights)
            heads.append(torch.bmm(self.attn_dropout(weights), value))

        mixed = torch.stack(heads, dim=0).mean(dim=0)
        attention = torch.stack(maps, dim=2)  # B, Tq, heads, Tk
        return self.out_dropout(self.w_h(mixed)), attention
