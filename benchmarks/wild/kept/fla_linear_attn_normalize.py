"""The running sum of keys in the linear attention normaliser runs over heads instead of time.

fla-org/flash-linear-attention #594 (2025)
https://github.com/fla-org/flash-linear-attention/pull/594
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def naive_chunk_linear_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal linear attention, all tensors of shape `[B, T, H, D]`."""
    kv = torch.einsum('bthk,bthv->bthkv', k, v).cumsum(1)
    return torch.einsum('bthk,bthkv->bthv', q * scale, kv)


class _LinearAttentionBase(nn.Module):
    r"""
    Args:
        hidden_size (int): The hidden size of the input.
        num_heads (int): The number of heads.

    The feature map of queries and keys is `elu(x) + 1`; the output is normalised, so that the weights over the past
    sum to one.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (hidden_size // num_heads) ** -0.5
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """hidden_states: `[B, T, hidden_size]`; every position attends to itself and to the past."""
        q, k, v = (proj(hidden_states).unflatten(-1, (self.num_heads, -1))
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        o = naive_chunk_linear_attn(q, k, v, self.scale)
        o = self.normalize_output(q * self.scale, k, o)
        return self.o_proj(o.flatten(2))


def broken() -> nn.Module:
    class LinearAttention(_LinearAttentionBase):
        @staticmethod
        def normalize_output(q, k, o):
            k = k.cumsum(-2)
            z = (q * k).sum(-1, keepdim=True)
            return o / (z + 1e-10)

    torch.manual_seed(0)
    return LinearAttention(32, 4)


def fixed() -> nn.Module:
    class LinearAttention(_LinearAttentionBase):
        @staticmethod
        def normalize_output(q, k, o):
            k = k.cumsum(1)
            z = (q * k).sum(-1, keepdim=True)
            return o / (z + 1e-10)

    torch.manual_seed(0)
    return LinearAttention(32, 4)


def example():
    g = torch.Generator().manual_seed(13)
    return (torch.randn(2, 12, 32, generator=g),), {}
