import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class CausalLinearAttention(nn.Module):
    """Autoregressive linear attention ("Transformers are RNNs", Katharopoulos et al.).

    No softmax and no temperature: similarity is phi(q) . phi(k) with phi = elu + 1. The
    prefix sums of phi(k) v^T and of phi(k) stand in for the triangular mask, so no T x T
    matrix is formed.
    """

    def __init__(self, dim=64, num_heads=4, eps=1e-6):
        super().__init__()
        self.num_heads = num_heads
        self.eps = eps
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.value_projection = nn.Linear(dim, dim)
        self.out_projection = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        """key_padding_mask: optional (B, T) bool, True on padding."""
        B, T, _ = x.shape
        H = self.num_heads
        Q = elu_feature_map(self.query_projection(x).view(B, T, H, -1))
        K = elu_feature_map(self.key_projection(x).view(B, T, H, -1))
        V = self.value_projection(x).view(B, T, H, -1)

        if key_padding_mask is not None:
            K = K.masked_fill(key_padding_mask[:, :, None, None], 0.0)

        KV = torch.einsum("bthd,bthm->bthdm", K, V).cumsum(dim=1)
        Z = K.cumsum(dim=1)
        num = torch.einsum("bthd,bthdm->bthm", Q, KV)
        den = torch.einsum("bthd,bthd->bth", Q, Z).unsqueeze(-1)
        out = num / (den + self.eps)
        return self.out_projection(out.reshape(B, T, -1))
