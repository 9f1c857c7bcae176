import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class CausalLinearAttention(nn.Module):
    """
    Autoregressive linear attention, "Transformers are RNNs" (Katharopoulos et al., 2020).

    out_i = phi(q_i) S_i / (phi(q_i) . z_i)  with running sums S_i of phi(k_j) v_j^T and z_i of phi(k_j)

    Arguments
    ---------
        dim: model width
        num_heads: number of heads
        eps: a small number to ensure the numerical stability of the denominator
    """

    def __init__(self, dim=64, num_heads=4, eps=1e-6):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.eps = eps
        self.feature_map = elu_feature_map
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.value_projection = nn.Linear(dim, dim)
        self.out_projection = nn.Linear(dim, dim)

    def forward(self, x):
        N, L, _ = x.shape
        H = self.num_heads
        Q = self.feature_map(self.query_projection(x).view(N, L, H, -1))
        K = self.feature_map(self.key_projection(x).view(N, L, H, -1))
        V = self.value_projection(x).view(N, L, H, -1)

        # running key-value state, (N, L, H, D, M)
        KV = torch.einsum("nlhd,nlhm->nlhdm", K, V).cumsum(dim=1)

        # normalizer
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)

        out = torch.einsum("nlhd,nlhdm,nlh->nlhm", Q, KV, Z)
        return self.out_projection(out.reshape(N, L, -1))
