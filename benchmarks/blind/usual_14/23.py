import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedQKAttention(nn.Module):
    """Full (non-LSH) shared-QK attention from the Reformer.

    Queries and keys come from one projection and keys have unit length. A token would always match
    itself best, so attention to itself gets a large negative value (-5e4) which leaves it as the
    fallback where there is nothing else: the first token of a causal sequence.
    """

    def __init__(self, dim: int = 64, heads: int = 4, causal: bool = True):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, key_mask=None):
        """key_mask: (batch, seq) bool, True for tokens that may be attended to."""
        b, n, d = x.shape
        qk = self.to_qk(x).view(b, n, self.heads, -1).transpose(1, 2)
        v = self.to_v(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = F.normalize(qk, p=2, dim=-1)
        dots = torch.einsum("bhie,bhje->bhij", qk, k) * qk.shape[-1] ** -0.5

        diag = torch.eye(n, dtype=torch.bool, device=x.device)
        dots = dots.masked_fill(diag, -5e4)
        lowest = torch.finfo(dots.dtype).min
        if self.causal:
            dots = dots.masked_fill(torch.ones_like(diag).triu(1), lowest)
        if key_mask is not None:
            dots = dots.masked_fill(~key_mask[:, None, None, :], lowest)
        out = dots.softmax(dim=-1) @ v
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))
