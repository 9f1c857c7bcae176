from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiheadAttention(nn.Module):
    """Time-first multi-head attention.

    Shapes:
        query: [T, B, C], key and value: [S, B, C]
        key_padding_mask: [B, S], True at padding
        attn_mask: additive, [T, S]

    Returns the output [T, B, C] and, with ``need_weights``, the weights averaged over the heads [B, T, S].
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim
        self.scaling = self.head_dim ** -0.5
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def _fold(self, x: Tensor, length: int, bsz: int) -> Tensor:
        return x.contiguous().view(length, bsz * self.num_heads, self.head_dim).transpose(0, 1)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
        need_weights: bool = True,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        tgt_len, bsz, _ = query.shape
        src_len = key.size(0)

        q = self._fold(self.q_proj(query) * self.scaling, tgt_len, bsz)
        k = self._fold(self.k_proj(key), src_len, bsz)
        v = self._fold(self.v_proj(value), src_len, bsz)

        scores = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            scores = scores + attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            scores = scores.view(bsz, self.num_heads, tgt_len, src_len)
            scores = scores.masked_fill(key_padding_mask[:, None, None, :].bool(), float("-inf"))
            scores = scores.view(bsz * self.num_heads, tgt_len, src_len)

        weights = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(scores)
        probs = F.dropout(weights, p=self.dropout, training=self.training)
        attn = torch.bmm(probs, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)
        attn = self.out_proj(attn)

        if not need_weights:
            return attn, None
        weights = weights.view(self.num_heads, bsz, tgt_len, src_len).mean(dim=0)
        return attn, weights
