import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class LinearAttention(nn.Module):
    """Bidirectional linear attention, O(N) in the sequence length.

    out_i = phi(q_i) (sum_j phi(k_j) v_j^T) / (phi(q_i) . sum_j phi(k_j))

    There is no softmax and no 1/sqrt(d): numerator and denominator are homogeneous in phi(q).

    key_lengths: (N,) number of valid keys per sample, optional.
    """

    def __init__(self, d_model=64, n_heads=4, eps=1e-6):
        super().__init__()
        self.n_heads = n_heads
        self.eps = eps
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def forward(self, queries, keys, values, key_lengths=None):
        N, L, _ = queries.shape
        _, S, _ = keys.shape
        H = self.n_heads

        Q = elu_feature_map(self.query_projection(queries).view(N, L, H, -1))
        K = elu_feature_map(self.key_projection(keys).view(N, S, H, -1))
        V = self.value_projection(values).view(N, S, H, -1)

        if key_lengths is not None:
            valid = torch.arange(S, device=keys.device)[None, :] < key_lengths[:, None]
            K = K * valid[:, :, None, None].to(K.dtype)

        KV = torch.einsum("nshd,nshm->nhmd", K, V)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        out = torch.einsum("nlhd,nhmd,nlh->nlhm", Q, KV, Z)
        return self.out_projection(out.reshape(N, L, -1))
