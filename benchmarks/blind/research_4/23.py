from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def feature_map(x):
    return F.elu(x) + 1


class CausalLinearAttention(nn.Module):
    """Linear attention with the elu+1 feature map (Katharopoulos et al., 2020).

    ``forward`` runs over whole sequences, ``step`` over one token at a time with a constant-size state; both give
    the same numbers. No scaling is needed, as the normaliser takes any common factor away.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, eps: float = 1e-6):
        super().__init__()
        self.num_heads = num_heads
        self.eps = eps
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)

    def _project(self, x):
        shape = x.shape[:-1] + (self.num_heads, x.size(-1) // self.num_heads)
        q = feature_map(self.to_q(x).view(shape))
        k = feature_map(self.to_k(x).view(shape))
        return q, k, self.to_v(x).view(shape)

    def forward(self, x: torch.Tensor, valid: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: [B, T, C]; valid: bool [B, T], True at real tokens."""
        q, k, v = self._project(x)
        if valid is not None:
            k = k * valid[:, :, None, None].to(k.dtype)
        kv = torch.einsum("bthd,bthe->bthde", k, v).cumsum(dim=1)
        z = k.cumsum(dim=1)
        num = torch.einsum("bthd,bthde->bthe", q, kv)
        den = (q * z).sum(dim=-1, keepdim=True).clamp(min=self.eps)
        return self.to_out((num / den).flatten(2))

    def step(
        self, x: torch.Tensor, state: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """x: [B, C]; returns the output [B, C] and the state to pass with the next token."""
        q, k, v = self._project(x)
        kv = torch.einsum("bhd,bhe->bhde", k, v)
        z = k
        if state is not None:
            kv, z = kv + state[0], z + state[1]
        num = torch.einsum("bhd,bhde->bhe", q, kv)
        den = (q * z).sum(dim=-1, keepdim=True).clamp(min=self.eps)
        return self.to_out((num / den).flatten(1)), (kv, z)
