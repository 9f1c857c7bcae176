"""The causal branch multiplies by the normaliser instead of by its reciprocal.

lucidrains/performer-pytorch #40 (2020)
https://github.com/lucidrains/performer-pytorch/issues/40
"""
import torch
from torch import nn


def default(val, d):
    return val if val is not None else d


# non-causal linear attention

def linear_attention(q, k, v):
    D_inv = 1. / torch.einsum('...nd,...d->...n', q, k.sum(dim=-2))
    context = torch.einsum('...nd,...ne->...de', k, v)
    out = torch.einsum('...de,...nd,...n->...ne', context, q, D_inv)
    return out


class _FastAttentionBase(nn.Module):
    """Generalized (ReLU kernel) linear attention; `causal` keeps it autoregressive."""

    def __init__(self, dim_heads, nb_features=None, causal=False, kernel_epsilon=1e-3):
        super().__init__()
        nb_features = default(nb_features, dim_heads)
        projection = torch.linalg.qr(torch.randn(nb_features, nb_features))[0][:, :dim_heads]
        self.register_buffer('projection_matrix', projection)
        self.causal = causal
        self.kernel_epsilon = kernel_epsilon

    def kernel(self, data):
        data = data * data.shape[-1] ** -0.25
        return torch.relu(data @ self.projection_matrix.t()) + self.kernel_epsilon

    def forward(self, q, k, v):
        q, k = self.kernel(q), self.kernel(k)
        attn_fn = self.causal_linear_attention if self.causal else linear_attention
        return attn_fn(q, k, v)


class _SelfAttention(nn.Module):
    def __init__(self, dim, fast_attention, heads=4):
        super().__init__()
        self.heads = heads
        self.fast_attention = fast_attention
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).reshape(b, n, self.heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        out = self.fast_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


def broken() -> nn.Module:
    class FastAttention(_FastAttentionBase):
        # efficient causal linear attention, created by EPFL, non-cuda version

        @staticmethod
        def causal_linear_attention(q, k, v):
            D_inv = torch.einsum('...nd,...nd->...n', q, k.cumsum(dim=-2))
            context = torch.einsum('...nd,...ne->...nde', k, v).cumsum(dim=-3)
            out = torch.einsum('...nde,...nd,...n->...ne', context, q, D_inv)
            return out

    torch.manual_seed(0)
    return _SelfAttention(32, FastAttention(8, causal=True))


def fixed() -> nn.Module:
    class FastAttention(_FastAttentionBase):
        # efficient causal linear attention, created by EPFL, non-cuda version

        @staticmethod
        def causal_linear_attention(q, k, v):
            D_inv = 1. / torch.einsum('...nd,...nd->...n', q, k.cumsum(dim=-2))
            context = torch.einsum('...nd,...ne->...nde', k, v).cumsum(dim=-3)
            out = torch.einsum('...nde,...nd,...n->...ne', context, q, D_inv)
            return out

    torch.manual_seed(0)
    return _SelfAttention(32, FastAttention(8, causal=True))


def example():
    g = torch.Generator().manual_seed(14)
    return (torch.randn(2, 14, 32, generator=g),), {}
