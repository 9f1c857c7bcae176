from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class SequenceFirstAttention(nn.Module):
    """Multi-head attention for time-major tensors.

    Inputs are Time x Batch x Channel, as in the recurrent layers of this toolkit.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.scaling = self.head_dim ** -0.5
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, query: Tensor, key: Optional[Tensor] = None,
                key_padding_mask: Optional[Tensor] = None) -> Tensor:
        """
        query: (tgt_len, batch, embed_dim)
        key: (src_len, batch, embed_dim), the query itself if omitted
        key_padding_mask: bool (batch, src_len), True at padding
        """
        key = query if key is None else key
        tgt_len, bsz, _ = query.shape
        src_len = key.size(0)

        q = self.q_proj(query) * self.scaling
        q = q.view(tgt_len, bsz, self.num_heads, self.head_dim).permute(1, 2, 0, 3)
        k = self.k_proj(key).view(src_len, bsz, self.num_heads, self.head_dim).permute(1, 2, 0, 3)
        v = self.v_proj(key).view(src_len, bsz, self.num_heads, self.head_dim).permute(1, 2, 0, 3)

        scores = torch.matmul(q, k.transpose(-2, -1))
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], torch.finfo(scores.dtype).min)
        probs = F.dropout(F.softmax(scores, dim=-1), p=self.dropout, training=self.training)

        attn = torch.matmul(probs, v)
        attn = attn.transpose(1, 2).reshape(tgt_len, bsz, self.embed_dim)
        return self.out_proj(attn)
