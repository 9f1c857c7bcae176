import torch
import torch.nn.functional as F
from torch import nn
from einops import rearrange


class CausalLinearAttention(nn.Module):
    """Linear attention of "Transformers are RNNs" (Katharopoulos et al., 2020) with the elu(x) + 1 feature map.

    out_i = phi(q_i) . sum_{j <= i} phi(k_j) v_j^T / phi(q_i) . sum_{j <= i} phi(k_j)

    There is no softmax and so no temperature. Padding is taken out of both sums by zeroing phi(k).
    """

    def __init__(self, dim=128, heads=4, dim_head=32, eps=1e-6):
        super().__init__()
        self.heads = heads
        self.eps = eps
        inner = heads * dim_head
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim)

    @staticmethod
    def feature_map(t):
        return F.elu(t) + 1

    def forward(self, x, mask=None):
        """mask: (b, n) bool, True for tokens"""
        q, k, v = rearrange(self.to_qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        q, k = self.feature_map(q), self.feature_map(k)
        if mask is not None:
            k = k * rearrange(mask, "b n -> b 1 n 1").to(k.dtype)

        state = torch.einsum("b h n d, b h n e -> b h n d e", k, v).cumsum(dim=2)
        norm = k.cumsum(dim=2)

        numerator = torch.einsum("b h n d, b h n d e -> b h n e", q, state)
        denominator = torch.einsum("b h n d, b h n d -> b h n", q, norm)
        out = numerator / (denominator.unsqueeze(-1) + self.eps)
        return self.to_out(rearrange(out, "b h n e -> b n (h e)"))
