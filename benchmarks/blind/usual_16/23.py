from typing import Optional

import torch
from torch import Tensor, nn


class DetectionEncoderLayer(nn.Module):
    """Encoder layer over flattened image features, position encodings on queries and keys.

    src: (B, HW, C), pos: (B, HW, C) sine encodings, key_padding_mask: (B, HW), True on padding.
    """

    def __init__(self, d_model: int = 64, nhead: int = 4, dim_feedforward: int = 128, dropout: float = 0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.ffn = nn.Sequential(
            nn.Linear(d_model, dim_feedforward),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(dim_feedforward, d_model),
        )
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)

    def with_pos_embed(self, tensor: Tensor, pos: Optional[Tensor]) -> Tensor:
        if pos is not None:
            tensor += pos
        return tensor

    def forward(self, src: Tensor, pos: Optional[Tensor] = None, key_padding_mask: Optional[Tensor] = None) -> Tensor:
        q = k = self.with_pos_embed(src, pos)
        src2, _ = self.self_attn(q, k, value=src, key_padding_mask=key_padding_mask, need_weights=False)
        src = src + self.dropout1(src2)
        src = self.norm1(src)
        src = src + self.dropout2(self.ffn(src))
        return self.norm2(src)
