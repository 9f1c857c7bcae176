import torch
import torch.nn as nn


class StreamingAttention(nn.Module):
    """Exact attention computed over key blocks with a running maximum and normaliser.

    Mirrors the lax.scan formulation: the carry is (numerator, denominator, max).
    ``key_valid`` is bool (B, S), False on padding; rows without any valid key return zeros
    before the output projection.
    """

    def __init__(self, dim=64, num_heads=4, key_block=32):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.key_block = key_block
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def _heads(self, t):
        return t.view(t.size(0), t.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def _scan_body(self, carry, q, k, v, valid):
        num, den, m = carry
        s = (q @ k.transpose(-1, -2)).float()
        if valid is not None:
            s = s.masked_fill(~valid[:, None, None, :], float("-inf"))
        m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        m_safe = torch.where(torch.isinf(m_new), torch.zeros_like(m_new), m_new)
        alpha = torch.exp(m - m_safe)
        p = torch.exp(s - m_safe)
        num = alpha * num + p @ v.float()
        den = alpha * den + p.sum(dim=-1, keepdim=True)
        return num, den, m_new

    def forward(self, x, context=None, key_valid=None):
        context = x if context is None else context
        q = self._heads(self.q(x)) * self.head_dim ** -0.5
        k, v = self._heads(self.k(context)), self._heads(self.v(context))

        num = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        den = num.new_zeros(*q.shape[:-1], 1)
        m = num.new_full((*q.shape[:-1], 1), float("-inf"))
        carry = (num, den, m)
        for s in range(0, k.size(2), self.key_block):
            e = s + self.key_block
            valid = None if key_valid is None else key_valid[:, s:e]
            carry = self._scan_body(carry, q, k[:, :, s:e], v[:, :, s:e], valid)

        num, den, _ = carry
        out = torch.where(den > 0, num / den.clamp(min=1e-30), torch.zeros_like(num))
        out = out.to(x.dtype).transpose(1, 2).reshape(x.size(0), x.size(1), -1)
        return self.o(out)
