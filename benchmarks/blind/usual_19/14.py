from typing import Optional

import torch
from torch import Tensor, nn
import torch.nn.functional as F


class ObjectQueryDecoderLayer(nn.Module):
    """Post-norm transformer decoder layer over object queries, batch-second layout (L, N, E)."""

    def __init__(self, d_model=64, nhead=4, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)

        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model)

        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.dropout3 = nn.Dropout(dropout)

    @staticmethod
    def with_pos_embed(tensor: Tensor, pos: Optional[Tensor]):
        return tensor if pos is None else tensor + pos

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
        pos: Optional[Tensor] = None,
        query_pos: Optional[Tensor] = None,
    ):
        q = k = self.with_pos_embed(tgt, query_pos)
        attended = self.self_attn(q, k, value=tgt, attn_mask=tgt_mask)[0]
        queries = self.norm1(tgt + self.dropout1(attended))

        attended = self.multihead_attn(
            query=self.with_pos_embed(queries, query_pos),
            key=self.with_pos_embed(memory, pos),
            value=memory,
            key_padding_mask=memory_key_padding_mask,
        )[0]
        queries = self.norm2(tgt + self.dropout2(attended))

        hidden = self.linear2(self.dropout(F.relu(self.linear1(queries))))
        return self.norm3(queries + self.dropout3(hidden))
