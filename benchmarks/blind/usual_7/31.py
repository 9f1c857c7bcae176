from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ObjectQueryDecoderLayer(nn.Module):
    """
    DETR decoder layer, batch first.

    Args (forward):
        tgt: (B, num_queries, d_model)
        memory: (B, H*W, d_model) encoder output
        pos: (B, H*W, d_model) position embedding of the memory
        query_pos: (B, num_queries, d_model)
        memory_key_padding_mask: (B, H*W) bool, True at pixels that only pad the image to the batch size
    """

    def __init__(self, d_model=64, nhead=4, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.nhead = nhead
        self.sa_q = nn.Linear(d_model, d_model)
        self.sa_k = nn.Linear(d_model, d_model)
        self.sa_v = nn.Linear(d_model, d_model)
        self.sa_out = nn.Linear(d_model, d_model)
        self.ca_q = nn.Linear(d_model, d_model)
        self.ca_k = nn.Linear(d_model, d_model)
        self.ca_v = nn.Linear(d_model, d_model)
        self.ca_out = nn.Linear(d_model, d_model)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.p = dropout

    @staticmethod
    def with_pos_embed(tensor: Tensor, pos: Optional[Tensor]):
        return tensor if pos is None else tensor + pos

    def _attend(self, q, k, v, key_padding_mask=None):
        q, k, v = (t.unflatten(-1, (self.nhead, -1)).transpose(1, 2) for t in (q, k, v))
        attn_mask = None
        if key_padding_mask is not None:
            attn_mask = key_padding_mask[:, None, None, :].expand(-1, self.nhead, q.size(2), -1)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=self.p if self.training else 0.0
        )
        return out.transpose(1, 2).flatten(2)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_key_padding_mask: Optional[Tensor] = None,
        pos: Optional[Tensor] = None,
        query_pos: Optional[Tensor] = None,
    ) -> Tensor:
        qk = self.with_pos_embed(tgt, query_pos)
        tgt2 = self.sa_out(self._attend(self.sa_q(qk), self.sa_k(qk), self.sa_v(tgt)))
        tgt = self.norm1(tgt + self.dropout(tgt2))
        tgt2 = self.ca_out(
            self._attend(
                self.ca_q(self.with_pos_embed(tgt, query_pos)),
                self.ca_k(self.with_pos_embed(memory, pos)),
                self.ca_v(memory),
                key_padding_mask=memory_key_padding_mask,
            )
        )
        tgt = self.norm2(tgt + self.dropout(tgt2))
        tgt2 = self.linear2(self.dropout(F.relu(self.linear1(tgt))))
        return self.norm3(tgt + self.dropout(tgt2))
