import torch
from torch import nn


class MaskedCrossAttentionLayer(nn.Module):
    """Masked attention of Mask2Former, post-norm, tensors (length, batch, channels).

    ``mask_logits`` (batch, queries, pixels) is the mask each query predicted in the layer
    before. A query looks only at the pixels where its mask is foreground; a query with an
    empty mask looks at all of them. Positions are added to queries and keys, not to
    values. No gradient goes through the mask.
    """

    def __init__(self, d_model=128, nhead=4, dropout=0.0):
        super().__init__()
        self.nhead = nhead
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def attention_mask(self, mask_logits):
        # True = not allowed, which is what nn.MultiheadAttention takes
        blocked = mask_logits.detach().sigmoid() < 0.5
        empty = blocked.all(dim=-1, keepdim=True)
        blocked = blocked & ~empty
        return blocked.unsqueeze(1).repeat(1, self.nhead, 1, 1).flatten(0, 1)

    def forward(self, tgt, memory, mask_logits=None, pos=None, query_pos=None):
        attn_mask = None if mask_logits is None else self.attention_mask(mask_logits)
        query = tgt if query_pos is None else tgt + query_pos
        key = memory if pos is None else memory + pos
        tgt2 = self.multihead_attn(query=query, key=key, value=memory,
                                   attn_mask=attn_mask, need_weights=False)[0]
        return self.norm(tgt + self.dropout(tgt2))
