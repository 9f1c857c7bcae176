import torch
import torch.nn as nn


def phi(x):
    return torch.nn.functional.elu(x) + 1.0


class CausalLinearAttention(nn.Module):
    """Causal linear attention (Katharopoulos et al.), cumulative-sum form."""

    def __init__(self, dim=64, heads=4, eps=1e-6):
        super().__init__()
        self.heads = heads
        self.eps = eps
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        h = self.heads

        def split(t):
            return t.reshape(b, n, h, d // h).transpose(1, 2)

        q = phi(split(self.to_q(x)))
        k = phi(split(self.to_k(x)))
        v = split(self.to_v(x))

        kv = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
        z = k.sum(dim=2)

        num = torch.einsum("bhnd,bhnde->bhne", q, kv)
        den = torch.einsum("bhnd,bhd->bhn", q, z).clamp(min=self.eps)
        out = num / den.unsqueeze(-1)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))
