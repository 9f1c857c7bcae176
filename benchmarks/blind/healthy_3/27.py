from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def feature_map(x: torch.Tensor) -> torch.Tensor:
    """elu(x) + 1, strictly positive."""
    return F.elu(x) + 1.0


class CausalLinearAttention(nn.Module):
    """Linear transformer attention, computed in chunks.

    Instead of softmax(q k) v the similarity is phi(q) . phi(k), therefore there is no 1 / sqrt(d): it would
    cancel between numerator and denominator. ``forward`` and repeated calls of ``step`` agree.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, chunk_size: int = 32, eps: float = 1e-6):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.chunk_size = chunk_size
        self.eps = eps
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def _project(self, x: torch.Tensor):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, D // self.num_heads).permute(2, 0, 3, 1, 4).float()
        return feature_map(q), feature_map(k), v

    def forward(self, x: torch.Tensor, pad_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (B, T, dim); pad_mask: (B, T), True for padding, whose keys are left out of all sums."""
        B, T, D = x.shape
        q, k, v = self._project(x)
        if pad_mask is not None:
            k = k.masked_fill(pad_mask[:, None, :, None], 0.0)

        kv = q.new_zeros(B, self.num_heads, k.size(-1), v.size(-1))
        k_sum = q.new_zeros(B, self.num_heads, k.size(-1))
        outputs = []
        for qc, kc, vc in zip(*(t.split(self.chunk_size, dim=2) for t in (q, k, v))):
            # inside the chunk: the lower triangle including the diagonal; before it: the state
            local = torch.tril(qc @ kc.transpose(-1, -2))
            num = local @ vc + qc @ kv
            den = local.sum(dim=-1) + torch.einsum("bhtd,bhd->bht", qc, k_sum)
            outputs.append(num / (den + self.eps).unsqueeze(-1))
            kv = kv + kc.transpose(-1, -2) @ vc
            k_sum = k_sum + kc.sum(dim=2)

        y = torch.cat(outputs, dim=2).transpose(1, 2).reshape(B, T, D)
        return self.out(y.to(x.dtype))

    def step(
        self, x: torch.Tensor, state: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """One token x: (B, dim) as a recurrent network, constant memory."""
        q, k, v = (t.squeeze(2) for t in self._project(x.unsqueeze(1)))
        outer = k.unsqueeze(-1) * v.unsqueeze(-2)
        kv, k_sum = (outer, k) if state is None else (state[0] + outer, state[1] + k)
        num = torch.einsum("bhd,bhde->bhe", q, kv)
        den = (q * k_sum).sum(dim=-1, keepdim=True) + self.eps
        y = (num / den).flatten(1).to(x.dtype)
        return self.out(y), (kv, k_sum)
