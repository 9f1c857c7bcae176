import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class MultiHeadCrossAttention(nn.Module):
    """Multi-head attention with separate query and key/value sources.

    Args:
        d_model: width of the query source and of the output.
        num_heads: number of heads.
        kv_dim: width of the key/value source, ``d_model`` if omitted.
        dropout: dropout on the attention weights.
        average_weights: if True, the returned weights are averaged over the heads.
    """

    def __init__(
        self,
        d_model: int = 64,
        num_heads: int = 4,
        kv_dim: Optional[int] = None,
        dropout: float = 0.0,
        average_weights: bool = True,
    ) -> None:
        super().__init__()
        assert d_model % num_heads == 0
        kv_dim = d_model if kv_dim is None else kv_dim
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.average_weights = average_weights
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(kv_dim, d_model)
        self.value = nn.Linear(kv_dim, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(
        self,
        query: torch.Tensor,
        source: torch.Tensor,
        source_mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            query: (batch, tgt_len, d_model)
            source: (batch, src_len, kv_dim)
            source_mask: bool (batch, src_len), True where the source may be read

        Returns:
            output: (batch, tgt_len, d_model)
            weights: (batch, tgt_len, src_len) if ``average_weights``,
                else (batch, num_heads, tgt_len, src_len)
        """
        q = self._heads(self.query(query))
        k = self._heads(self.key(source))
        v = self._heads(self.value(source))

        logits = q @ k.mT / math.sqrt(self.head_dim)
        if source_mask is not None:
            logits = logits.masked_fill(~source_mask[:, None, None, :], torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1)

        context = self.dropout(weights) @ v
        output = self.output(context.transpose(1, 2).flatten(2))

        if self.average_weights:
            weights = weights.mean(dim=0)
        return output, weights
