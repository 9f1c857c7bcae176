import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalLinearAttention(nn.Module):
    """Autoregressive linear attention with prefix sums (Katharopoulos et al., 2020).

    Args:
        x: (batch, length, dim)
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, eps: float = 1e-6):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.eps = eps
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def feature_map(self, x):
        return F.elu(x) + 1.0

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q = q.view(b, n, self.num_heads, -1).transpose(1, 2)
        k = k.view(b, n, self.num_heads, -1).transpose(1, 2)
        v = v.view(b, n, self.num_heads, -1).transpose(1, 2)

        q = self.feature_map(q)
        k = self.feature_map(k)

        state = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
        z = k.sum(dim=2)

        num = torch.einsum("bhnd,bhnde->bhne", q, state)
        den = torch.einsum("bhnd,bhd->bhn", q, z).unsqueeze(-1)
        out = num / (den + self.eps)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))
