import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class CausalLinearAttention(nn.Module):
    """Autoregressive linear attention (Katharopoulos et al., 2020), O(N) in the sequence length.

    Position i gets  phi(q_i)^T sum_{j<=i} phi(k_j) v_j^T / (phi(q_i)^T sum_{j<=i} phi(k_j)).
    """

    def __init__(self, d_model=128, n_heads=4, eps=1e-6):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.eps = eps
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def forward(self, x):
        N, L, D = x.shape
        H = self.n_heads

        Q = elu_feature_map(self.query_projection(x).view(N, L, H, -1))
        K = elu_feature_map(self.key_projection(x).view(N, L, H, -1))
        V = self.value_projection(x).view(N, L, H, -1)

        # running sum of the outer products of keys and values
        KV = torch.einsum("nlhd,nlhm->nlhdm", K, V).cumsum(dim=1)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        out = torch.einsum("nlhd,nlhdm,nlh->nlhm", Q, KV, Z)

        return self.out_projection(out.reshape(N, L, D))
