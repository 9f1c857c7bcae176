from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiheadAttention(nn.Module):
    """
    Attention for the captioning decoder, with weights for visualisation.

    Args:
        query: (bsz, tgt_len, embed_dim)
        key, value: (bsz, src_len, kdim)
        key_padding_mask: bool (bsz, src_len), True at padding
        need_weights: also return the attention weights, averaged over the heads,
            (bsz, tgt_len, src_len)
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, kdim: Optional[int] = None, dropout: float = 0.0):
        super().__init__()
        kdim = embed_dim if kdim is None else kdim
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.scaling = self.head_dim ** -0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(kdim, embed_dim)
        self.v_proj = nn.Linear(kdim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _fold(self, t: Tensor) -> Tensor:
        bsz, n, _ = t.shape
        t = t.view(bsz, n, self.num_heads, self.head_dim).transpose(1, 2)
        return t.reshape(bsz * self.num_heads, n, self.head_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = True,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        bsz, tgt_len, _ = query.shape
        src_len = key.shape[1]
        q = self._fold(self.q_proj(query) * self.scaling)
        k = self._fold(self.k_proj(key))
        v = self._fold(self.v_proj(value))

        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            attn_weights = attn_weights.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)
        attn_weights = F.softmax(attn_weights, dim=-1)
        attn_probs = F.dropout(attn_weights, p=self.dropout, training=self.training)

        attn = torch.bmm(attn_probs, v)
        attn = attn.view(bsz, self.num_heads, tgt_len, self.head_dim)
        attn = attn.transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        attn = self.out_proj(attn)

        if not need_weights:
            return attn, None
        attn_weights = attn_weights.view(self.num_heads, bsz, tgt_len, src_len)
        return attn, attn_weights.mean(dim=0)
