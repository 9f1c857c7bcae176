import math
from typing import Optional

import torch
from torch import nn


class EinsumDense(nn.Module):
    """Dense layer over the last axis with a multi-axis kernel, `(..., in) x (in, heads, size)`."""

    def __init__(self, input_dim, num_heads, size, use_bias=True):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(input_dim, num_heads, size))
        self.bias = nn.Parameter(torch.zeros(num_heads, size)) if use_bias else None
        limit = math.sqrt(6.0 / (input_dim + num_heads * size))
        nn.init.uniform_(self.kernel, -limit, limit)

    def forward(self, inputs):
        outputs = torch.einsum("...d,dhk->...hk", inputs, self.kernel)
        return outputs if self.bias is None else outputs + self.bias


class MultiHeadAttention(nn.Module):
    """Port of `keras.layers.MultiHeadAttention`.

    Call arguments, in the order of Keras (value comes *before* key):
        query: `(B, T, dim)`.
        value: `(B, S, dim)`.
        key: `(B, S, dim)`, `value` is used for both if it is not given.
        query_mask: bool `(B, T)`, False for padded queries.
        value_mask: bool `(B, S)`, False for padded values.
        key_mask: bool `(B, S)`, False for padded keys.
        attention_mask: bool `(B, T, S)` or `(T, S)`, True lets a query attend to a position.
        use_causal_mask: also forbid attending to later positions.
        return_attention_scores: return `(output, scores)`, scores being `(B, num_heads, T, S)`.

    Queries that may not attend to anything (for instance padded ones) attend uniformly, as in Keras.
    """

    def __init__(
        self,
        num_heads: int = 4,
        key_dim: int = 16,
        dim: int = 64,
        value_dim: Optional[int] = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: Optional[int] = None,
    ):
        super().__init__()
        value_dim = value_dim if value_dim else key_dim
        output_shape = output_shape if output_shape else dim
        self._inverse_sqrt_key_dim = 1.0 / math.sqrt(float(key_dim))
        self._query_dense = EinsumDense(dim, num_heads, key_dim, use_bias)
        self._key_dense = EinsumDense(dim, num_heads, key_dim, use_bias)
        self._value_dense = EinsumDense(dim, num_heads, value_dim, use_bias)
        self._dropout_layer = nn.Dropout(dropout)
        self._output_dense = nn.Linear(num_heads * value_dim, output_shape, bias=use_bias)

    def _compute_attention_mask(self, query, value, query_mask, value_mask, key_mask, attention_mask, use_causal_mask):
        auto_mask = None
        if query_mask is not None:
            auto_mask = query_mask.bool()[:, :, None]  # (B, T, 1)
        if value_mask is not None:
            mask = value_mask.bool()[:, None, :]  # (B, 1, S)
            auto_mask = mask if auto_mask is None else auto_mask & mask
        if key_mask is not None:
            mask = key_mask.bool()[:, None, :]
            auto_mask = mask if auto_mask is None else auto_mask & mask
        if use_causal_mask:
            row = torch.arange(query.shape[1], device=query.device)[:, None]
            col = torch.arange(value.shape[1], device=query.device)[None, :]
            mask = (row >= col)[None]  # (1, T, S)
            auto_mask = mask if auto_mask is None else auto_mask & mask
        if attention_mask is not None:
            attention_mask = attention_mask.bool()
            if attention_mask.dim() == 2:
                attention_mask = attention_mask[None]
            auto_mask = attention_mask if auto_mask is None else auto_mask & attention_mask
        return auto_mask

    def _masked_softmax(self, scores, mask):
        if mask is not None:
            scores = torch.where(mask[:, None, :, :], scores, torch.full_like(scores, torch.finfo(scores.dtype).min))
        return torch.softmax(scores, dim=-1)

    def forward(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        use_causal_mask=False,
    ):
        if key is None:
            key = value
        mask = self._compute_attention_mask(
            query, value, query_mask, value_mask, key_mask, attention_mask, use_causal_mask
        )
        query = self._query_dense(query) * self._inverse_sqrt_key_dim
        key = self._key_dense(key)
        value = self._value_dense(value)

        scores = torch.einsum("bshd,bthd->bhts", key, query)
        scores = self._masked_softmax(scores, mask)
        outputs = torch.einsum("bhts,bshd->bthd", self._dropout_layer(scores), value)
        outputs = self._output_dense(outputs.flatten(2))
        if return_attention_scores:
            return outputs, scores
        return outputs
