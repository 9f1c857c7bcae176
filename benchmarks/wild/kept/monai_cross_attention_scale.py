"""self.scale is computed but the attention scores are never multiplied by it.

Project-MONAI/GenerativeModels #146 (2022)
https://github.com/Project-MONAI/GenerativeModels/issues/146
"""
from __future__ import annotations

import math

import torch
from torch import nn


class _CrossAttentionBase(nn.Module):
    """
    A cross attention layer.

    Args:
        query_dim: number of channels in the query.
        cross_attention_dim: number of channels in the context.
        num_attention_heads: number of heads to use for multi-head attention.
        num_head_channels: number of channels in each head.
        dropout: dropout probability to use.
    """

    def __init__(
        self,
        query_dim: int,
        cross_attention_dim: int | None = None,
        num_attention_heads: int = 8,
        num_head_channels: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner_dim = num_head_channels * num_attention_heads
        cross_attention_dim = cross_attention_dim if cross_attention_dim is not None else query_dim

        self.scale = 1 / math.sqrt(num_head_channels)
        self.num_heads = num_attention_heads

        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(cross_attention_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(cross_attention_dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def reshape_heads_to_batch_dim(self, x: torch.Tensor) -> torch.Tensor:
        """
        Divide hidden state dimension to the multiple attention heads and reshape their input as instances in the batch.
        """
        batch_size, seq_len, dim = x.shape
        x = x.reshape(batch_size, seq_len, self.num_heads, dim // self.num_heads)
        return x.permute(0, 2, 1, 3).reshape(batch_size * self.num_heads, seq_len, dim // self.num_heads)

    def reshape_batch_dim_to_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Combine the output of the attention heads back into the hidden state dimension."""
        batch_size, seq_len, dim = x.shape
        x = x.reshape(batch_size // self.num_heads, self.num_heads, seq_len, dim)
        return x.permute(0, 2, 1, 3).reshape(batch_size // self.num_heads, seq_len, dim * self.num_heads)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        query = self.to_q(x)
        context = context if context is not None else x
        key = self.to_k(context)
        value = self.to_v(context)
        query = self.reshape_heads_to_batch_dim(query)
        key = self.reshape_heads_to_batch_dim(key)
        value = self.reshape_heads_to_batch_dim(value)
        x = self._attention(query, key, value)
        x = self.reshape_batch_dim_to_heads(x)
        return self.to_out(x)


def broken() -> nn.Module:
    class CrossAttention(_CrossAttentionBase):
        def _attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            attention_scores = torch.matmul(query, key.transpose(-1, -2))
            attention_probs = attention_scores.softmax(dim=-1)
            return torch.bmm(attention_probs, value)

    torch.manual_seed(0)
    return CrossAttention(32, 24, num_attention_heads=2, num_head_channels=16)


def fixed() -> nn.Module:
    class CrossAttention(_CrossAttentionBase):
        def _attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            attention_scores = torch.matmul(query, key.transpose(-1, -2)) * self.scale
            attention_probs = attention_scores.softmax(dim=-1)
            return torch.bmm(attention_probs, value)

    torch.manual_seed(0)
    return CrossAttention(32, 24, num_attention_heads=2, num_head_channels=16)


def example():
    g = torch.Generator().manual_seed(36)
    return (torch.randn(2, 16, 32, generator=g),), {"context": torch.randn(2, 6, 24, generator=g)}
