from typing import NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class RecurrentState(NamedTuple):
    s: torch.Tensor  # (B, H, Dk, Dv)
    z: torch.Tensor  # (B, H, Dk)


class CausalLinearAttention(nn.Module):
    """Transformers are RNNs (Katharopoulos et al. 2020).

    ``forward`` is the parallel form, ``step`` is the equal recurrence for decoding. There is no softmax and
    no 1/sqrt(d): the feature map is elu + 1 and the weights are normalised by their running sum.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4, eps: float = 1e-6):
        super().__init__()
        self.h = n_heads
        self.d = d_model // n_heads
        self.eps = eps
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)

    @staticmethod
    def phi(x):
        return F.elu(x) + 1.0

    def _project(self, x):
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        return self.phi(q), self.phi(k), v

    def forward(self, x: torch.Tensor, key_lengths: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self._project(x)
        if key_lengths is not None:
            live = torch.arange(T, device=x.device)[None, :] < key_lengths[:, None]
            k = k * live[:, None, :, None].to(k.dtype)

        kv = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(dim=2)
        z = k.cumsum(dim=2)
        num = torch.einsum("bhtd,bhtde->bhte", q, kv)
        den = torch.einsum("bhtd,bhtd->bht", q, z) + self.eps
        y = num / den.unsqueeze(-1)
        return self.o(y.transpose(1, 2).reshape(B, T, C))

    def step(self, x_t: torch.Tensor, state: Optional[RecurrentState] = None):
        """x_t: (B, C)"""
        q, k, v = (t.squeeze(2) for t in self._project(x_t.unsqueeze(1)))
        outer = k.unsqueeze(-1) * v.unsqueeze(-2)
        if state is None:
            state = RecurrentState(outer, k)
        else:
            state = RecurrentState(state.s + outer, state.z + k)
        num = torch.einsum("bhd,bhde->bhe", q, state.s)
        den = (q * state.z).sum(-1, keepdim=True) + self.eps
        return self.o((num / den).flatten(1)), state
