import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class CausalLinearAttention(nn.Module):
    """Autoregressive linear attention, "Transformers are RNNs" (Katharopoulos et al.).

    out_i = phi(q_i) sum_{j<=i} phi(k_j) v_j^T / (phi(q_i) sum_{j<=i} phi(k_j))
    """

    def __init__(self, dim=128, n_heads=4, eps=1e-6):
        super().__init__()
        self.n_heads = n_heads
        self.eps = eps
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.value_projection = nn.Linear(dim, dim)
        self.out_projection = nn.Linear(dim, dim)

    def forward(self, x):
        N, L, C = x.shape
        H = self.n_heads
        Q = elu_feature_map(self.query_projection(x).view(N, L, H, -1))
        K = elu_feature_map(self.key_projection(x).view(N, L, H, -1))
        V = self.value_projection(x).view(N, L, H, -1)

        Z = 1 / (torch.einsum("nlhi,nhi->nlh", Q, K.sum(1)) + self.eps)
        KV = torch.einsum("nlhd,nlhm->nlhdm", K, V).cumsum(dim=1)
        out = torch.einsum("nlhd,nlhdm,nlh->nlhm", Q, KV, Z)
        return self.out_projection(out.reshape(N, L, C))
