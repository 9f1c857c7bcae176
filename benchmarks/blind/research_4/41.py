from typing import Optional

import torch
import torch.nn as nn


class PoolingByAttention(nn.Module):
    """Pooling by multihead attention (PMA) for sets of varying size.

    A few learned seeds read the elements of the set.

    Args:
        dim: width of the elements.
        num_heads: number of heads.
        num_seeds: output vectors per set.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, num_seeds: int = 1):
        super().__init__()
        if dim % num_heads != 0:
            raise ValueError("dim must be a multiple of num_heads")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.seeds = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.seeds)
        self.fc_q = nn.Linear(dim, dim)
        self.fc_k = nn.Linear(dim, dim)
        self.fc_v = nn.Linear(dim, dim)
        self.fc_o = nn.Linear(dim, dim)
        self.ln0 = nn.LayerNorm(dim)
        self.ln1 = nn.LayerNorm(dim)

    def _fold(self, t: torch.Tensor) -> torch.Tensor:
        return torch.cat(t.split(self.head_dim, dim=2), dim=0)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Args:
            x: [B, N, dim].
            mask: bool [B, N], True for the elements that exist.

        Returns:
            [B, num_seeds, dim]
        """
        b = x.size(0)
        q = self.fc_q(self.seeds.expand(b, -1, -1))
        k, v = self.fc_k(x), self.fc_v(x)
        q_, k_, v_ = self._fold(q), self._fold(k), self._fold(v)

        logits = torch.bmm(q_, k_.transpose(1, 2)) / self.head_dim**0.5
        if mask is not None:
            key_mask = mask.repeat_interleave(self.num_heads, dim=0)
            logits = logits.masked_fill(~key_mask.unsqueeze(1), -1e9)
        pooled = torch.bmm(logits.softmax(dim=-1), v_)

        out = self.ln0(q + torch.cat(pooled.split(b, dim=0), dim=2))
        return self.ln1(out + torch.relu(self.fc_o(out)))
