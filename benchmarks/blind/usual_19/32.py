import torch
import torch.nn as nn
import torch.nn.functional as F


def feature_map(x):
    return F.elu(x) + 1.0


class CausalLinearAttention(nn.Module):
    """Causal linear attention (Katharopoulos et al., 2020), parallel form.

        y_t = phi(q_t) sum_{s<=t} phi(k_s) v_s^T / (phi(q_t) . sum_{s<=t} phi(k_s))
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, eps: float = 1e-6):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.eps = eps
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        n, l, c = x.shape
        q = feature_map(self.q_proj(x)).view(n, l, self.num_heads, self.head_dim)
        k = feature_map(self.k_proj(x)).view(n, l, self.num_heads, self.head_dim)
        v = self.v_proj(x).view(n, l, self.num_heads, self.head_dim)

        kv = torch.einsum("nlhd,nlhm->nlhdm", k, v).cumsum(dim=1)
        z = 1.0 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + self.eps)
        y = torch.einsum("nlhd,nlhdm,nlh->nlhm", q, kv, z)

        return self.out_proj(y.reshape(n, l, c))
