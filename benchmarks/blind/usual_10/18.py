import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class CausalLinearAttention(nn.Module):
    """Autoregressive linear attention, "Transformers are RNNs" (Katharopoulos et al., 2020).

    Implemented with cumulative sums, O(N) in the length of the sequence.
    """

    def __init__(self, dim: int = 64, heads: int = 4, eps: float = 1e-6):
        super().__init__()
        self.heads = heads
        self.eps = eps
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.value_projection = nn.Linear(dim, dim)
        self.out_projection = nn.Linear(dim, dim)

    def forward(self, x):
        N, L, C = x.shape
        H = self.heads
        queries = self.query_projection(x).view(N, L, H, -1)
        keys = self.key_projection(x).view(N, L, H, -1)
        values = self.value_projection(x).view(N, L, H, -1)

        Q = elu_feature_map(queries)
        K = elu_feature_map(keys)

        # running sum of the outer products
        KV = torch.einsum("nlhd,nlhm->nlhdm", K, values).cumsum(dim=1)
        # normalizer
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        V = torch.einsum("nlhd,nlhdm,nlh->nlhm", Q, KV, Z)
        return self.out_projection(V.reshape(N, L, C))
