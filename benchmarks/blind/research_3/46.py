import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class CausalLinearAttention(nn.Module):
    """Transformers are RNNs (Katharopoulos et al. 2020), autoregressive variant.

    Arguments
    ---------
        d_model: model width
        n_heads: number of heads
        feature_map: positive feature map, elu(x) + 1 by default
        eps: added to the normaliser
    """

    def __init__(self, d_model=64, n_heads=4, feature_map=None, eps=1e-6):
        super().__init__()
        self.n_heads = n_heads
        self.feature_map = feature_map or elu_feature_map
        self.eps = eps
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def forward(self, x, key_lengths=None):
        N, L, _ = x.shape
        Q = self.query_projection(x).view(N, L, self.n_heads, -1)
        K = self.key_projection(x).view(N, L, self.n_heads, -1)
        V = self.value_projection(x).view(N, L, self.n_heads, -1)

        Q = self.feature_map(Q)
        K = self.feature_map(K)
        if key_lengths is not None:
            valid = torch.arange(L, device=x.device)[None, :] < key_lengths[:, None]
            K = K * valid[:, :, None, None].to(K.dtype)

        KV = torch.einsum("nlhd,nlhm->nlhdm", K, V).cumsum(dim=1)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        out = torch.einsum("nlhd,nlhdm,nlh->nlhm", Q, KV, Z)

        return self.out_projection(out.reshape(N, L, -1))
