import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalLinearAttention(nn.Module):
    """Causal attention with the feature map elu(x) + 1 ("Transformers are RNNs").

    There is neither a softmax nor a 1/sqrt(d): position t reads the running sums
    S_t = sum_{s<=t} phi(k_s) v_s^T and z_t = sum_{s<=t} phi(k_s).
    """

    def __init__(self, d_model=64, n_heads=4, eps=1e-6):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.eps = eps
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    @staticmethod
    def phi(x):
        return F.elu(x) + 1.0

    def forward(self, x, lengths_mask=None):
        """x: (N, L, d_model); lengths_mask: bool (N, L), True inside the sequence."""
        N, L, D = x.shape
        H = self.n_heads
        q = self.phi(self.query(x).view(N, L, H, -1))
        k = self.phi(self.key(x).view(N, L, H, -1))
        v = self.value(x).view(N, L, H, -1)

        if lengths_mask is not None:
            k = k * lengths_mask[:, :, None, None].to(k.dtype)

        S = torch.einsum("nlhd,nlhm->nlhdm", k, v).cumsum(dim=1)
        z = k.cumsum(dim=1)

        num = torch.einsum("nlhd,nlhdm->nlhm", q, S)
        den = torch.einsum("nlhd,nlhd->nlh", q, z).unsqueeze(-1)
        return self.out((num / (den + self.eps)).reshape(N, L, D))
