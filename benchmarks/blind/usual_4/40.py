from typing import Optional

import torch
from torch import Tensor, nn


class ObjectQueryDecoderLayer(nn.Module):
    """DETR-style decoder layer, post-norm, batch first.

    Position encodings go into the queries and keys only, the values stay without them.

    Args of forward:
        tgt: (B, Q, d) object queries
        memory: (B, HW, d) image features
        query_pos: (B, Q, d) learned query positions
        pos: (B, HW, d) sine positions of the features
        memory_valid: (B, HW) bool, True for pixels of the image, False for batch padding
    """

    def __init__(self, d_model=64, nhead=4, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def with_pos_embed(tensor, pos: Optional[Tensor]):
        return tensor if pos is None else tensor + pos

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        query_pos: Optional[Tensor] = None,
        pos: Optional[Tensor] = None,
        memory_valid: Optional[Tensor] = None,
    ) -> Tensor:
        q = k = self.with_pos_embed(tgt, query_pos)
        tgt2 = self.self_attn(q, k, value=tgt, need_weights=False)[0]
        tgt = self.norm1(tgt + self.dropout(tgt2))

        tgt2 = self.multihead_attn(
            query=self.with_pos_embed(tgt, query_pos),
            key=self.with_pos_embed(memory, pos),
            value=memory,
            key_padding_mask=None if memory_valid is None else ~memory_valid,
            need_weights=False,
        )[0]
        tgt = self.norm2(tgt + self.dropout(tgt2))

        tgt2 = self.linear2(self.dropout(torch.relu(self.linear1(tgt))))
        return self.norm3(tgt + self.dropout(tgt2))
