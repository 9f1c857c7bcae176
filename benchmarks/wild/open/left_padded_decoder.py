"""A query row whose keys are all padding is filled with -inf and softmaxed to NaN.

pytorch/pytorch #41508 (2020)
https://github.com/pytorch/pytorch/issues/41508
"""
import math

import torch
import torch.nn as nn


class _MultiheadAttentionBase(nn.Module):
    """Batch-first multi-head attention in the style of F.multi_head_attention_forward."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, key_padding_mask=None, attn_mask=None):
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        attn = self._scaled_dot_product_attention(q, k, v, key_padding_mask, attn_mask)
        return self.out_proj(attn.transpose(1, 2).flatten(2))


class _Decoder(nn.Module):
    """
    x: (batch, seq, embed_dim); key_padding_mask: (batch, seq) bool, True for padding (ignored as a key).
    Prompts are padded on the left, and attention is causal.
    """

    def __init__(self, attention, embed_dim, num_heads, num_layers):
        super().__init__()
        self.attns = nn.ModuleList([attention(embed_dim, num_heads) for _ in range(num_layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(embed_dim) for _ in range(num_layers)])
        self.ffns = nn.ModuleList([nn.Sequential(nn.Linear(embed_dim, 2 * embed_dim), nn.ReLU(),
                                                 nn.Linear(2 * embed_dim, embed_dim)) for _ in range(num_layers)])

    def forward(self, x, key_padding_mask=None):
        attn_mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        for attn, norm, ffn in zip(self.attns, self.norms, self.ffns):
            x = norm(x + attn(x, key_padding_mask, attn_mask))
            x = x + ffn(x)
        return x


def broken() -> nn.Module:
    class MultiheadAttention(_MultiheadAttentionBase):
        def _scaled_dot_product_attention(self, q, k, v, key_padding_mask, attn_mask):
            attn_output_weights = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
            if attn_mask is not None:
                attn_output_weights = attn_output_weights.masked_fill(attn_mask, float("-inf"))
            if key_padding_mask is not None:
                attn_output_weights = attn_output_weights.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
            attn_output_weights = attn_output_weights.softmax(dim=-1)
            return torch.matmul(attn_output_weights, v)

    torch.manual_seed(0)
    return _Decoder(MultiheadAttention, 32, 4, 2)


def fixed() -> nn.Module:
    class MultiheadAttention(_MultiheadAttentionBase):
        def _scaled_dot_product_attention(self, q, k, v, key_padding_mask, attn_mask):
            attn_output_weights = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
            if attn_mask is not None:
                attn_output_weights = attn_output_weights.masked_fill(attn_mask, float("-inf"))
            if key_padding_mask is not None:
                attn_output_weights = attn_output_weights.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
            # a row without any key gives a zero output
            empty = (attn_output_weights == float("-inf")).all(dim=-1, keepdim=True)
            attn_output_weights = attn_output_weights.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
            return torch.matmul(attn_output_weights, v)

    torch.manual_seed(0)
    return _Decoder(MultiheadAttention, 32, 4, 2)


def example() -> tuple[tuple, dict]:
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))
    return (x,), {"key_padding_mask": torch.tensor([[False] * 6, [True] * 2 + [False] * 4])}
