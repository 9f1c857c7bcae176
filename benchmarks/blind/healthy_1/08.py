import copy
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn, Tensor


def _get_activation_fn(activation):
    if activation == "relu":
        return F.relu
    if activation == "gelu":
        return F.gelu
    raise RuntimeError(f"activation should be relu/gelu, not {activation}.")


class TransformerDecoderLayer(nn.Module):
    """DETR decoder layer, sequence first.

    tgt:       (num_queries, batch, d_model)
    memory:    (hw, batch, d_model)
    pos:       (hw, batch, d_model) encoding of the memory
    query_pos: (num_queries, batch, d_model) learned object queries
    memory_key_padding_mask: (batch, hw), True on padded pixels
    """

    def __init__(self, d_model=256, nhead=8, dim_feedforward=512, dropout=0.1,
                 activation="relu", normalize_before=False):
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
        self.activation = _get_activation_fn(activation)
        self.normalize_before = normalize_before

    @staticmethod
    def with_pos_embed(tensor, pos: Optional[Tensor]):
        return tensor if pos is None else tensor + pos

    def _self_attention(self, x, tgt_mask, tgt_key_padding_mask, query_pos):
        q = k = self.with_pos_embed(x, query_pos)
        out = self.self_attn(q, k, value=x, attn_mask=tgt_mask,
                             key_padding_mask=tgt_key_padding_mask, need_weights=False)[0]
        return self.dropout1(out)

    def _cross_attention(self, x, memory, memory_mask, memory_key_padding_mask, pos, query_pos):
        out = self.multihead_attn(query=self.with_pos_embed(x, query_pos),
                                  key=self.with_pos_embed(memory, pos),
                                  value=memory, attn_mask=memory_mask,
                                  key_padding_mask=memory_key_padding_mask, need_weights=False)[0]
        return self.dropout2(out)

    def _ffn(self, x):
        return self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))

    def forward(self, tgt, memory,
                tgt_mask: Optional[Tensor] = None,
                memory_mask: Optional[Tensor] = None,
                tgt_key_padding_mask: Optional[Tensor] = None,
                memory_key_padding_mask: Optional[Tensor] = None,
                pos: Optional[Tensor] = None,
                query_pos: Optional[Tensor] = None):
        if self.normalize_before:
            tgt = tgt + self._self_attention(self.norm1(tgt), tgt_mask, tgt_key_padding_mask, query_pos)
            tgt = tgt + self._cross_attention(self.norm2(tgt), memory, memory_mask,
                                              memory_key_padding_mask, pos, query_pos)
            return tgt + self._ffn(self.norm3(tgt))

        tgt = self.norm1(tgt + self._self_attention(tgt, tgt_mask, tgt_key_padding_mask, query_pos))
        tgt = self.norm2(tgt + self._cross_attention(tgt, memory, memory_mask,
                                                     memory_key_padding_mask, pos, query_pos))
        return self.norm3(tgt + self._ffn(tgt))


def _get_clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])
