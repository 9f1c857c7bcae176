"""The learned scales of the query/key norm are created but never applied, so they get no gradient.

lucidrains/x-transformers #352 (2026)
https://github.com/lucidrains/x-transformers/issues/352
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class Attention(nn.Module):
        """qk_norm: q and k are l2-normalised per head; qk_norm_dim_scale: then multiplied by learned scales per head
        and dimension. forward(x, mask=None): mask (B, N) bool, True = keep. causal."""

        def __init__(self, dim=32, dim_head=8, heads=4, causal=True, qk_norm_scale=10, qk_norm_dim_scale=True):
            super().__init__()
            self.heads, self.causal, self.qk_norm_scale = heads, causal, qk_norm_scale
            self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
            self.to_k = nn.Linear(dim, dim_head * heads, bias=False)
            self.to_v = nn.Linear(dim, dim_head * heads, bias=False)
            self.to_out = nn.Linear(dim_head * heads, dim, bias=False)
            self.qk_norm_q_scale = self.qk_norm_k_scale = 1
            if qk_norm_dim_scale:
                self.qk_norm_q_scale = nn.Parameter(1 + 0.5 * torch.randn(heads, 1, dim_head))
                self.qk_norm_k_scale = nn.Parameter(1 + 0.5 * torch.randn(heads, 1, dim_head))

        def forward(self, x, mask=None):
            b, n, _ = x.shape
            q, k, v = (t(x).view(b, n, self.heads, -1).transpose(1, 2) for t in (self.to_q, self.to_k, self.to_v))
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            if rev == 2:
                q = q * self.qk_norm_q_scale
                k = k * self.qk_norm_k_scale
            dots = torch.einsum('bhid,bhjd->bhij', q, k) * self.qk_norm_scale
            value = -torch.finfo(dots.dtype).max
            if mask is not None:
                dots = dots.masked_fill(~mask[:, None, None, :], value)
            if self.causal:
                dots = dots.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), value)
            out = dots.softmax(dim=-1) @ v
            return self.to_out(out.transpose(1, 2).reshape(b, n, -1))

    torch.manual_seed(0)
    return Attention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
