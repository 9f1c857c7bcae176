import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalLinearAttention(nn.Module):
    """Autoregressive linear attention (Katharopoulos et al., 2020).

    There is no softmax and no 1/sqrt(d): the kernel feature map phi(x) = elu(x) + 1 keeps
    the similarities positive and the prefix sums give each position exactly the keys up
    to and including itself.
    """

    def __init__(self, dim=64, num_heads=4, eps=1e-6):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.eps = eps
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    @staticmethod
    def feature_map(x):
        return F.elu(x) + 1.0

    def forward(self, x, pad_mask=None):
        # pad_mask: (B, T), True where the token is padding
        B, T, C = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.num_heads, self.head_dim)
        k = k.view(B, T, self.num_heads, self.head_dim)
        v = v.view(B, T, self.num_heads, self.head_dim)

        q = self.feature_map(q)
        k = self.feature_map(k)
        if pad_mask is not None:
            k = k.masked_fill(pad_mask[:, :, None, None], 0.0)

        kv = torch.einsum("bthd,bthe->bthde", k, v).cumsum(dim=1)
        z = k.cumsum(dim=1)

        num = torch.einsum("bthd,bthde->bthe", q, kv)
        den = torch.einsum("bthd,bthd->bth", q, z).unsqueeze(-1)
        out = num / (den + self.eps)
        return self.to_out(out.reshape(B, T, C))
