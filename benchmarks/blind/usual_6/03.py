from typing import Optional

import torch
from torch import Tensor, nn
import torch.nn.functional as F


def with_pos(x: Tensor, pos: Optional[Tensor]) -> Tensor:
    return x if pos is None else x + pos


class DetectionDecoderLayer(nn.Module):
    """Post-norm DETR decoder layer (batch first).

    Object queries attend to each other, then to the flattened feature map. Images of
    one batch are padded to a common size; ``memory_valid`` tells which of the
    flattened pixels belong to the image.
    """

    def __init__(self, d_model: int = 128, nhead: int = 8, dim_feedforward: int = 256, dropout: float = 0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)

        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.dropout = nn.Dropout(dropout)

        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.dropout3 = nn.Dropout(dropout)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_valid: Optional[Tensor] = None,
        pos: Optional[Tensor] = None,
        query_pos: Optional[Tensor] = None,
    ) -> Tensor:
        """
        Args:
            tgt: (batch, num_queries, d_model)
            memory: (batch, H*W, d_model)
            memory_valid: bool (batch, H*W), True on image pixels, False on padding
            pos: positional encoding of the memory
            query_pos: learned embedding of the object queries
        """
        q = k = with_pos(tgt, query_pos)
        out = self.self_attn(q, k, value=tgt, need_weights=False)[0]
        tgt = self.norm1(tgt + self.dropout1(out))

        out = self.cross_attn(
            query=with_pos(tgt, query_pos),
            key=with_pos(memory, pos),
            value=memory,
            key_padding_mask=memory_valid,
            need_weights=False,
        )[0]
        tgt = self.norm2(tgt + self.dropout2(out))

        out = self.linear2(self.dropout(F.relu(self.linear1(tgt))))
        return self.norm3(tgt + self.dropout3(out))
