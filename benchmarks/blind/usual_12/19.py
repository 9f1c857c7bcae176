import torch
import torch.nn as nn


class MaskedSelfAttention(nn.Module):
    """Multi-head self-attention for padded batches.

    Args:
        embed_dim: model width.
        num_heads: number of heads.

    Masks follow the convention of ``nn.MultiheadAttention``, i.e. True means *do not attend*:

        padding_mask: bool (batch, seq), True at padding positions.
        blocked:      bool (seq, seq), True where query i must not look at key j.

    A query without any key left gets a zero vector from the attention instead of NaN.
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, padding_mask=None, blocked=None):
        bsz, seq, dim = x.shape
        qkv = self.in_proj(x).view(bsz, seq, 3, self.num_heads, self.head_dim)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(dim=2))

        logits = q @ k.transpose(-1, -2) * self.head_dim**-0.5
        ignore = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=x.device)
        if padding_mask is not None:
            ignore = ignore | padding_mask[:, None, None, :]
        if blocked is not None:
            ignore = ignore | blocked[None, None, :, :]

        logits = logits.masked_fill(ignore, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1).masked_fill(ignore, 0.0)
        y = self.dropout(weights) @ v
        return self.out_proj(y.transpose(1, 2).reshape(bsz, seq, dim))
