import torch
import torch.nn as nn


class DETRDecoderLayer(nn.Module):
    """Decoder layer for set prediction: object queries attend to flattened image features.

    Args of forward:
        tgt: (B, num_queries, C)
        memory: (B, HW, C)
        query_pos: learned query embeddings, added to queries and keys but not to values
        pos: positional encoding of the memory
        memory_valid: (B, HW) bool, True where the pixel belongs to the image,
            False where the batch was padded
    """

    def __init__(self, d_model=64, nhead=4, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def with_pos(t, pos):
        return t if pos is None else t + pos

    def forward(self, tgt, memory, memory_valid=None, pos=None, query_pos=None):
        q = k = self.with_pos(tgt, query_pos)
        t2 = self.self_attn(q, k, value=tgt, need_weights=False)[0]
        tgt = self.norm1(tgt + self.dropout(t2))

        t2 = self.cross_attn(
            query=self.with_pos(tgt, query_pos),
            key=self.with_pos(memory, pos),
            value=memory,
            key_padding_mask=memory_valid,
            need_weights=False,
        )[0]
        tgt = self.norm2(tgt + self.dropout(t2))

        t2 = self.linear2(self.dropout(torch.relu(self.linear1(tgt))))
        return self.norm3(tgt + self.dropout(t2))
