import torch
import torch.nn as nn
import torch.nn.functional as F


def feature_map(x):
    return F.elu(x) + 1.0


class LinearAttention(nn.Module):
    """Linear attention, Katharopoulos et al. 2020.

    softmax(q k) is replaced by phi(q) phi(k) with phi = elu + 1; there is no softmax and
    no 1/sqrt(d), the row sum does the normalisation. Tokens with ``mask`` == False
    contribute neither to the numerator nor to the denominator.
    """

    def __init__(self, dim=64, num_heads=4, causal=False, eps=1e-6):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.eps = eps
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        shape = (B, T, self.num_heads, C // self.num_heads)
        q = feature_map(self.q(x).view(shape))
        k = feature_map(self.k(x).view(shape))
        v = self.v(x).view(shape)
        if mask is not None:
            # after the feature map, since phi(0) = 1
            k = k * mask[:, :, None, None].to(k.dtype)

        if self.causal:
            kv = torch.einsum("bthd,bthe->bthde", k, v).cumsum(dim=1)
            z = k.cumsum(dim=1)
            num = torch.einsum("bthd,bthde->bthe", q, kv)
            den = torch.einsum("bthd,bthd->bth", q, z)
        else:
            kv = torch.einsum("bthd,bthe->bhde", k, v)
            z = k.sum(dim=1)
            num = torch.einsum("bthd,bhde->bthe", q, kv)
            den = torch.einsum("bthd,bhd->bth", q, z)

        y = num / (den.unsqueeze(-1) + self.eps)
        return self.o(y.reshape(B, T, C))
