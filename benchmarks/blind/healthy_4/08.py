import torch
import torch.nn.functional as F
from torch import nn
from typing import NamedTuple, Optional


class LinearAttentionState(NamedTuple):
    kv: torch.Tensor  # (b, h, d, e): sum of phi(k) v^T
    z: torch.Tensor   # (b, h, d): sum of phi(k)


class CausalLinearAttention(nn.Module):
    """'Transformers are RNNs' causal linear attention with a carried state.

    Feeding a sequence in several calls, handing each call the state of the one before,
    equals feeding it in one.
    """

    def __init__(self, dim=128, heads=4, dim_head=32, eps=1e-6):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.eps = eps
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def split(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.heads, -1).transpose(1, 2)

    def forward(self, x, state: Optional[LinearAttentionState] = None, mask=None):
        """mask: (b, n) bool, True at valid positions; invalid ones are left out of the sums."""
        q = F.elu(self.split(self.to_q(x))) + 1
        k = F.elu(self.split(self.to_k(x))) + 1
        v = self.split(self.to_v(x))

        if mask is not None:
            k = k * mask[:, None, :, None].to(k.dtype)

        kv = torch.einsum('bhnd,bhne->bhnde', k, v).cumsum(dim=2)
        z = k.cumsum(dim=2)
        if state is not None:
            kv = kv + state.kv.unsqueeze(2)
            z = z + state.z.unsqueeze(2)

        num = torch.einsum('bhnd,bhnde->bhne', q, kv)
        den = torch.einsum('bhnd,bhnd->bhn', q, z).clamp(min=self.eps)
        out = num / den.unsqueeze(-1)

        new_state = LinearAttentionState(kv[:, :, -1], z[:, :, -1])
        b, h, n, e = out.shape
        return self.to_out(out.transpose(1, 2).reshape(b, n, h * e)), new_state
