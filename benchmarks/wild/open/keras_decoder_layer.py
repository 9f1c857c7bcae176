"""The causal mask is dropped when the fused kernel cannot be used because the layer has attention dropout.

keras-team/keras #23038 (2026)
https://github.com/keras-team/keras/issues/23038
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class _TransformerDecoder(nn.Module):
    """Decoder-only layer: causal self-attention and a feed-forward network, post-norm."""

    def __init__(self, attention, hidden_dim, intermediate_dim):
        super().__init__()
        self.self_attention = attention
        self.self_attention_norm = nn.LayerNorm(hidden_dim)
        self.feedforward_intermediate = nn.Linear(hidden_dim, intermediate_dim)
        self.feedforward_output = nn.Linear(intermediate_dim, hidden_dim)
        self.feedforward_norm = nn.LayerNorm(hidden_dim)

    def forward(self, decoder_sequence):
        x = self.self_attention(decoder_sequence, decoder_sequence, use_causal_mask=True)
        x = self.self_attention_norm(x + decoder_sequence)
        y = self.feedforward_output(F.relu(self.feedforward_intermediate(x)))
        return self.feedforward_norm(x + y)


class _MultiHeadAttentionBase(nn.Module):
    def __init__(self, num_heads, key_dim, dropout=0.0):
        super().__init__()
        self.num_heads, self.key_dim, self.dropout = num_heads, key_dim, dropout
        dim = num_heads * key_dim
        self.query_dense = nn.Linear(dim, dim)
        self.key_dense = nn.Linear(dim, dim)
        self.value_dense = nn.Linear(dim, dim)
        self.output_dense = nn.Linear(dim, dim)

    def _heads(self, x):
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.key_dim).transpose(1, 2)


def broken() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        def forward(self, query, value, key=None, attention_mask=None, return_attention_scores=False,
                    use_causal_mask=False):
            """
            attention_mask: boolean, (B, T, S); True marks positions that take part in attention.
            use_causal_mask: each position attends to itself and to earlier positions only.
            """
            key = value if key is None else key
            query, key, value = (self._heads(self.query_dense(query)), self._heads(self.key_dense(key)),
                                 self._heads(self.value_dense(value)))

            causal_only = use_causal_mask and attention_mask is None
            if use_causal_mask and not causal_only:
                causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
                attention_mask = attention_mask & causal

            output, scores = self._compute_attention(
                query, key, value, attention_mask, return_attention_scores, is_causal=causal_only)
            output = self.output_dense(output.transpose(1, 2).flatten(2))
            return (output, scores) if return_attention_scores else output

        def _compute_attention(self, query, key, value, attention_mask, return_attention_scores, is_causal):
            mask = None if attention_mask is None else attention_mask[:, None]
            use_dot_product_attention = not (self.dropout > 0.0 or return_attention_scores)
            if use_dot_product_attention:
                return F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal), None

            attention_scores = torch.einsum("bnte,bnse->bnts", query * (1.0 / math.sqrt(self.key_dim)), key)
            if mask is not None:
                attention_scores = attention_scores.masked_fill(~mask, torch.finfo(attention_scores.dtype).min)
            attention_scores = attention_scores.softmax(dim=-1)
            final_attn_scores = F.dropout(attention_scores, self.dropout, self.training)
            return torch.einsum("bnts,bnse->bnte", final_attn_scores, value), attention_scores

    torch.manual_seed(0)
    return _TransformerDecoder(MultiHeadAttention(num_heads=4, key_dim=8, dropout=0.1), 32, 64)


def fixed() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        def forward(self, query, value, key=None, attention_mask=None, return_attention_scores=False,
                    use_causal_mask=False):
            """
            attention_mask: boolean, (B, T, S); True marks positions that take part in attention.
            use_causal_mask: each position attends to itself and to earlier positions only.
            """
            key = value if key is None else key
            query, key, value = (self._heads(self.query_dense(query)), self._heads(self.key_dense(key)),
                                 self._heads(self.value_dense(value)))

            fused = not (self.dropout > 0.0 or return_attention_scores)
            causal_only = use_causal_mask and attention_mask is None and fused
            if use_causal_mask and not causal_only:
                causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
                attention_mask = causal[None] if attention_mask is None else attention_mask & causal

            output, scores = self._compute_attention(
                query, key, value, attention_mask, return_attention_scores, is_causal=causal_only)
            output = self.output_dense(output.transpose(1, 2).flatten(2))
            return (output, scores) if return_attention_scores else output

        def _compute_attention(self, query, key, value, attention_mask, return_attention_scores, is_causal):
            mask = None if attention_mask is None else attention_mask[:, None]
            use_dot_product_attention = not (self.dropout > 0.0 or return_attention_scores)
            if use_dot_product_attention:
                return F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal), None

            attention_scores = torch.einsum("bnte,bnse->bnts", query * (1.0 / math.sqrt(self.key_dim)), key)
            if mask is not None:
                attention_scores = attention_scores.masked_fill(~mask, torch.finfo(attention_scores.dtype).min)
            attention_scores = attention_scores.softmax(dim=-1)
            final_attn_scores = F.dropout(attention_scores, self.dropout, self.training)
            return torch.einsum("bnts,bnse->bnte", final_attn_scores, value), attention_scores

    torch.manual_seed(0)
    return _TransformerDecoder(MultiHeadAttention(num_heads=4, key_dim=8, dropout=0.1), 32, 64)
