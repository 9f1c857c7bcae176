from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class CappedSelfAttention(nn.Module):
    """Grouped-query causal self-attention with tanh logit capping.

    Args:
        dim: model width.
        num_heads: query heads.
        num_kv_heads: key/value heads, must divide ``num_heads``.
        logit_cap: logits are squashed smoothly into ``(-logit_cap, logit_cap)``.
    """

    def __init__(self, dim: int = 64, num_heads: int = 8, num_kv_heads: int = 2, logit_cap: float = 5.0,
                 dropout: float = 0.0):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.groups = num_heads // num_kv_heads
        self.head_dim = dim // num_heads
        self.logit_cap = logit_cap
        self.dropout = dropout
        self.q_proj = nn.Linear(dim, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, dim, bias=False)

    def _mask(self, n: int, padding_mask: Optional[torch.Tensor], device) -> torch.Tensor:
        keep = torch.ones(n, n, dtype=torch.bool, device=device).tril()[None, None]
        if padding_mask is not None:
            keep = keep & padding_mask[:, None, None, :].bool()
        return keep

    def forward(self, x: torch.Tensor, padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """``padding_mask``: (batch, seq), 1 for tokens and 0 for padding."""
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k = k.repeat_interleave(self.groups, dim=1)
        v = v.repeat_interleave(self.groups, dim=1)

        logits = torch.matmul(q, k.transpose(-2, -1)) * self.head_dim ** -0.5
        keep = self._mask(n, padding_mask, x.device)
        logits = logits.masked_fill(~keep, torch.finfo(logits.dtype).min)
        logits = self.logit_cap * torch.tanh(logits / self.logit_cap)

        probs = logits.float().softmax(dim=-1).to(q.dtype)
        probs = F.dropout(probs, p=self.dropout, training=self.training)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(b, n, -1)
        return self.o_proj(out)
