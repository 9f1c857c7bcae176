"""The heads are merged by a reshape without permuting back, so a token's output mixes several positions.

jsbaan/transformer-from-scratch #6 (2026)
https://github.com/jsbaan/transformer-from-scratch/pull/6
"""
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F


class _MultiHeadAttentionBase(nn.Module):
    def __init__(self, hidden_dim: int, num_heads: int):
        super().__init__()
        assert hidden_dim % num_heads == 0
        self.qkv_dim = hidden_dim // num_heads
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(hidden_dim, 3 * num_heads * self.qkv_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.qkv_dim, hidden_dim, bias=False)

    def _self_attention_projection(self, x: torch.Tensor):
        """Project x and interpret the result as queries, keys and values, each (N, num_heads, S, D_qkv)"""
        batch_size, sequence_length, _ = x.shape
        qkv = self.qkv_proj(x)
        qkv = qkv.reshape(batch_size, sequence_length, self.num_heads, 3 * self.qkv_dim)
        qkv = qkv.permute(0, 2, 1, 3)
        return qkv.chunk(3, dim=-1)

    def scaled_dot_product(self, q, k, v, src_padding_mask=None, future_mask=None):
        """
        :param src_padding_mask: Used for encoder self-attention to handle pad tokens, boolean (N, S), True for real tokens
        :param future_mask: Used for decoder self-attention to avoid any token i attending to a token > i,
            boolean (S, S), True for allowed positions
        """
        attn_logits = torch.matmul(q, torch.transpose(k, -2, -1)) / (q.shape[-1] ** 0.5)
        if src_padding_mask is not None:
            attn_logits = attn_logits.masked_fill(src_padding_mask[:, None, None, :] == 0, float("-inf"))
        if future_mask is not None:
            attn_logits = attn_logits.masked_fill(future_mask == 0, float("-inf"))
        attention = F.softmax(attn_logits, dim=-1)
        return torch.matmul(attention, v), attention


def broken() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        def forward(self, x: torch.Tensor, src_padding_mask: Optional[torch.BoolTensor] = None,
                    future_mask: Optional[torch.BoolTensor] = None):
            """
            Perform multi-head self-attention.

            N = batch size, S = source sequence length, E = embedding dimensionality
            """
            batch_size, sequence_length, hidden_dim = x.size()
            q, k, v = self._self_attention_projection(x)

            # Compute (contextualized) value vector for each "head"
            values, attn = self.scaled_dot_product(q, k, v, src_padding_mask, future_mask)

            # Concatenate contextualized value vectors from all heads
            values = values.reshape(batch_size, sequence_length, hidden_dim)

            # Linearly transform the concatenation of all heads' value vectors to the original hidden dim
            output = self.o_proj(values)
            return output

    torch.manual_seed(0)
    return MultiHeadAttention(32, 4)


def fixed() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        def forward(self, x: torch.Tensor, src_padding_mask: Optional[torch.BoolTensor] = None,
                    future_mask: Optional[torch.BoolTensor] = None):
            """
            Perform multi-head self-attention.

            N = batch size, S = source sequence length, E = embedding dimensionality
            """
            batch_size, sequence_length, hidden_dim = x.size()
            q, k, v = self._self_attention_projection(x)

            # Compute (contextualized) value vector for each "head"
            values, attn = self.scaled_dot_product(q, k, v, src_padding_mask, future_mask)

            # Concatenate contextualized value vectors from all heads
            values = values.permute(0, 2, 1, 3).reshape(batch_size, sequence_length, hidden_dim)

            # Linearly transform the concatenation of all heads' value vectors to the original hidden dim
            output = self.o_proj(values)
            return output

    torch.manual_seed(0)
    return MultiHeadAttention(32, 4)
