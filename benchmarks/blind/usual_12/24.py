from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def with_pos_embed(tensor: Tensor, pos: Optional[Tensor]) -> Tensor:
    return tensor if pos is None else tensor + pos


class DetrDecoderLayer(nn.Module):
    """Post-norm decoder layer of DETR. All tensors are (length, batch, d_model).

    The positional embeddings go to queries and keys only, the values stay without.
    """

    def __init__(self, d_model=64, nhead=4, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.dropout3 = nn.Dropout(dropout)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_key_padding_mask: Optional[Tensor] = None,
        pos: Optional[Tensor] = None,
        query_pos: Optional[Tensor] = None,
    ) -> Tensor:
        q = k = with_pos_embed(tgt, query_pos)
        out = self.self_attn(q, k, value=tgt)[0]
        out = self.norm1(tgt + self.dropout1(out))

        cross = self.multihead_attn(
            query=with_pos_embed(out, query_pos),
            key=with_pos_embed(memory, pos),
            value=memory,
            key_padding_mask=memory_key_padding_mask,
        )[0]
        out = self.norm2(tgt + self.dropout2(cross))

        ffn = self.linear2(self.dropout(F.relu(self.linear1(out))))
        return self.norm3(out + self.dropout3(ffn))
