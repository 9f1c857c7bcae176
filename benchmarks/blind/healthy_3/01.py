"""Ticket router: classifies short support messages into queues."""
import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, dropout: float):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        # a large finite negative: a message with no tokens at all stays finite
        scores = scores.masked_fill(~keep[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = self.drop(scores.softmax(dim=-1))
        out = (weights @ v).transpose(1, 2).reshape(B, T, D)
        return self.proj(out)


class EncoderLayer(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attn = SelfAttention(d_model, n_heads, dropout)
        self.norm2 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(d_ff, d_model),
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attn(self.norm1(x), keep))
        x = x + self.drop(self.ff(self.norm2(x)))
        return x


class TicketClassifier(nn.Module):
    """Pre-norm encoder with masked mean pooling.

    Args:
        vocab_size: number of tokens, id ``pad_id`` is padding.
        num_classes: number of queues.

    Inputs:
        token_ids: ``(batch, length)`` padded with ``pad_id``.
        labels: optional ``(batch,)``; with labels the loss is returned as well.
    """

    def __init__(
        self,
        vocab_size: int = 8000,
        num_classes: int = 12,
        d_model: int = 128,
        n_heads: int = 4,
        n_layers: int = 2,
        max_len: int = 256,
        dropout: float = 0.1,
        pad_id: int = 0,
    ):
        super().__init__()
        self.pad_id = pad_id
        self.max_len = max_len
        self.tok = nn.Embedding(vocab_size, d_model, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len, d_model)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            [EncoderLayer(d_model, n_heads, 4 * d_model, dropout) for _ in range(n_layers)]
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, token_ids: torch.Tensor, labels: Optional[torch.Tensor] = None):
        T = token_ids.size(1)
        if T > self.max_len:
            raise ValueError(f"sequence of length {T} exceeds max_len={self.max_len}")
        keep = token_ids != self.pad_id
        positions = torch.arange(T, device=token_ids.device)
        x = self.drop(self.tok(token_ids) + self.pos(positions))
        for layer in self.layers:
            x = layer(x, keep)
        x = self.norm(x)

        w = keep.unsqueeze(-1).to(x.dtype)
        pooled = (x * w).sum(dim=1) / w.sum(dim=1).clamp(min=1.0)
        logits = self.head(pooled)
        if labels is None:
            return logits
        return logits, F.cross_entropy(logits, labels)
