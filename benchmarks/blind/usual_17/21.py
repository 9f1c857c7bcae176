import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalLinearAttention(nn.Module):
    """Katharopoulos et al. (2020), phi(x) = elu(x) + 1, causal by prefix sums.

    There is no 1/sqrt(d): the normaliser cancels a common factor anyway.
    """

    def __init__(self, d_model=64, n_heads=4, eps=1e-6):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.eps = eps
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        """mask: optional bool (B, L), True for tokens."""
        B, L, D = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = F.elu(q.view(B, L, self.n_heads, self.d_head)) + 1
        k = F.elu(k.view(B, L, self.n_heads, self.d_head)) + 1
        v = v.view(B, L, self.n_heads, self.d_head)
        if mask is not None:
            k = k * mask[:, :, None, None].to(k.dtype)

        kv = torch.einsum("blhd,blhm->blhdm", k, v).cumsum(dim=1)
        z = k.cumsum(dim=1)

        num = torch.einsum("blhd,blhdm->blhm", q, kv)
        den = torch.einsum("blhd,blhd->blh", q, z).unsqueeze(-1)
        out = num / (den + self.eps)
        return self.out_proj(out.reshape(B, L, D))
