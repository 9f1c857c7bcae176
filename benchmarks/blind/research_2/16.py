import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class LinearAttention(nn.Module):
    """Multi-head linear attention from "Transformers are RNNs" (Katharopoulos et al., 2020), bidirectional.

    phi(Q) (phi(K)^T V) / (phi(Q) sum_j phi(K_j)), O(N d^2). The feature map replaces exp(q.k / sqrt(d)), so there is
    neither a softmax nor a 1/sqrt(d).

    Args:
        x: (B, N, dim)
        lengths: (B,) number of valid tokens.
    """

    def __init__(self, dim=64, num_heads=4, eps=1e-6):
        super().__init__()
        self.num_heads = num_heads
        self.eps = eps
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.value_projection = nn.Linear(dim, dim)
        self.out_projection = nn.Linear(dim, dim)

    def forward(self, x, lengths=None):
        N, L, C = x.shape
        H = self.num_heads
        Q = elu_feature_map(self.query_projection(x).view(N, L, H, -1))
        K = elu_feature_map(self.key_projection(x).view(N, L, H, -1))
        V = self.value_projection(x).view(N, L, H, -1)

        if lengths is not None:
            key_lengths = (torch.arange(L, device=x.device)[None] < lengths[:, None]).to(x.dtype)
            K = K * key_lengths[:, :, None, None]

        KV = torch.einsum("nshd,nshm->nhmd", K, V)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        out = torch.einsum("nlhd,nhmd,nlh->nlhm", Q, KV, Z)
        return self.out_projection(out.reshape(N, L, C))
