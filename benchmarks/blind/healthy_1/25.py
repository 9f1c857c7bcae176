from typing import NamedTuple, Optional

import torch
from torch import nn
import torch.nn.functional as F


class LinearAttentionState(NamedTuple):
    kv: torch.Tensor     # (batch, heads, d, d), sum of phi(k) v^T
    norm: torch.Tensor   # (batch, heads, d), sum of phi(k)


def elu_feature_map(x):
    return F.elu(x) + 1.0


class CausalLinearAttention(nn.Module):
    """"Transformers are RNNs" attention with phi(x) = elu(x) + 1.

    A call processes a segment of any length. Within the segment the masked quadratic form is used,
    everything before it is summarised by ``state``; feeding a sequence at once, in pieces or token by
    token gives the same result. There is no softmax and no temperature.

    ``mask``: (batch, segment) bool, False for padding, which adds nothing to the state.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, eps: float = 1e-6):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.eps = eps
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.value_projection = nn.Linear(dim, dim)
        self.out_projection = nn.Linear(dim, dim)

    def initial_state(self, batch: int, like: torch.Tensor) -> LinearAttentionState:
        h, d = self.num_heads, self.head_dim
        return LinearAttentionState(like.new_zeros(batch, h, d, d), like.new_zeros(batch, h, d))

    def forward(
        self,
        x: torch.Tensor,
        state: Optional[LinearAttentionState] = None,
        mask: Optional[torch.Tensor] = None,
    ):
        n, length, _ = x.shape
        if state is None:
            state = self.initial_state(n, x)

        shape = (n, length, self.num_heads, self.head_dim)
        q = elu_feature_map(self.query_projection(x).view(shape)).transpose(1, 2)
        k = elu_feature_map(self.key_projection(x).view(shape)).transpose(1, 2)
        v = self.value_projection(x).view(shape).transpose(1, 2)
        if mask is not None:
            k = k * mask[:, None, :, None].to(k.dtype)

        local = torch.matmul(q, k.transpose(-1, -2)).tril()
        numerator = torch.matmul(local, v) + torch.matmul(q, state.kv)
        denominator = local.sum(dim=-1) + torch.einsum("nhld,nhd->nhl", q, state.norm)
        out = numerator / (denominator + self.eps).unsqueeze(-1)

        state = LinearAttentionState(
            state.kv + torch.einsum("nhld,nhlm->nhdm", k, v),
            state.norm + k.sum(dim=2),
        )
        out = out.transpose(1, 2).reshape(n, length, -1)
        return self.out_projection(out), state
