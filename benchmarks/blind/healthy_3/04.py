import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class BERT4Rec(nn.Module):
    """Bidirectional item model trained with a cloze task.

    ids: 0 padding, 1..n_items items, n_items + 1 the [MASK] item.
    The output layer is tied to the item embedding and never predicts padding or [MASK].
    """

    def __init__(self, n_items: int = 500, max_len: int = 40, dim: int = 64, heads: int = 2,
                 layers: int = 2, dropout: float = 0.1):
        super().__init__()
        self.n_items = n_items
        self.mask_id = n_items + 1
        self.max_len = max_len
        self.item = nn.Embedding(n_items + 2, dim, padding_idx=0)
        self.position = nn.Embedding(max_len, dim)
        self.embed_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([_Block(dim, heads, dropout) for _ in range(layers)])
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.out_bias = nn.Parameter(torch.zeros(n_items))

    def encode(self, items: torch.Tensor) -> torch.Tensor:
        length = items.size(1)
        if length > self.max_len:
            raise ValueError(f"got {length} items, at most {self.max_len} are supported")
        valid = items.ne(0)
        pos = torch.arange(length, device=items.device)
        h = self.dropout(self.embed_norm(self.item(items) + self.position(pos)))
        bias = torch.zeros(valid.shape, dtype=h.dtype, device=h.device)
        bias = bias.masked_fill(~valid, torch.finfo(h.dtype).min)[:, None, None, :]
        for block in self.blocks:
            h = block(h, bias)
        return h

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """(batch, length) -> logits (batch, length, n_items); column j scores item j + 1."""
        h = self.transform(self.encode(items))
        return F.linear(h, self.item.weight[1 : self.n_items + 1], self.out_bias)

    def cloze_loss(self, items: torch.Tensor, mask_prob: float = 0.2,
                   generator: Optional[torch.Generator] = None) -> torch.Tensor:
        valid = items.ne(0)
        draw = torch.rand(items.shape, generator=generator, device=items.device)
        chosen = (draw < mask_prob) & valid
        corrupted = items.masked_fill(chosen, self.mask_id)
        logits = self(corrupted)
        target = (items - 1).masked_fill(~chosen, -100)
        total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
        return total / chosen.sum().clamp(min=1)

    @torch.no_grad()
    def recommend(self, history: torch.Tensor, k: int = 10) -> torch.Tensor:
        """history: (batch, length) right padded, length < max_len. Returns (batch, k) item ids."""
        batch = history.size(0)
        extended = torch.cat([history, history.new_zeros(batch, 1)], dim=1)
        end = history.ne(0).sum(dim=1)
        rows = torch.arange(batch, device=history.device)
        extended[rows, end] = self.mask_id
        logits = self(extended)[rows, end]
        return logits.topk(k, dim=-1).indices + 1


class _Block(nn.Module):
    """Post-norm, as in the original BERT."""

    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.norm_attn = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.norm_ffn = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def _split(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, h: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = self._split(self.query(h)), self._split(self.key(h)), self._split(self.value(h))
        att = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        # the sum may overflow to -inf in half precision; the clamp keeps rows without valid keys finite
        att = torch.softmax((att + bias).clamp(min=torch.finfo(att.dtype).min), dim=-1)
        ctx = torch.matmul(self.dropout(att), v).transpose(1, 2).flatten(2)
        h = self.norm_attn(h + self.dropout(self.output(ctx)))
        return self.norm_ffn(h + self.dropout(self.ffn(h)))
