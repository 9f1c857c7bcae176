import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange


def feature_map(x):
    return F.elu(x) + 1


def causal_linear_attention(q, k, v, eps=1e-6):
    """q, k, v: (b, h, n, d) after the feature map."""
    kv = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
    num = torch.einsum("bhnd,bhnde->bhne", q, kv)
    den = torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2))
    return num / (den.unsqueeze(-1) + eps)


class CausalLinearAttention(nn.Module):
    """Autoregressive linear attention (Katharopoulos et al., Transformers are RNNs, 2020).

    Computes, for every position i,

        phi(q_i) sum_{j<=i} phi(k_j) v_j^T  /  phi(q_i) sum_{j<=i} phi(k_j)

    Args:
        dim: model width
        heads: number of heads
        dim_head: width of a head, dim // heads if not given
    """

    def __init__(self, dim=64, heads=4, dim_head=None, dropout=0.0):
        super().__init__()
        dim_head = dim_head or dim // heads
        self.heads = heads
        inner = heads * dim_head
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x, mask=None):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        q, k = feature_map(q), feature_map(k)
        if mask is not None:  # (b, n), True for tokens to keep
            k = k * mask[:, None, :, None].to(k.dtype)
        out = causal_linear_attention(q, k, v)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.to_out(out)
