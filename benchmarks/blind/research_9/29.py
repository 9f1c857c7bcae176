import torch
from torch import nn
import torch.nn.functional as F


def phi(x):
    return F.elu(x) + 1


class ChunkedCausalLinearAttention(nn.Module):
    """Causal linear attention, evaluated chunk by chunk.

    Inside a chunk the quadratic form is used, everything before it comes from a running state
    (sum of phi(k) v^T and sum of phi(k)). There is no 1/sqrt(d): a factor would not cancel inside phi,
    and the original formulation (Katharopoulos et al., 2020) has none.
    """

    def __init__(self, dim: int = 64, heads: int = 4, chunk: int = 16, eps: float = 1e-6):
        super().__init__()
        self.heads, self.chunk, self.eps = heads, chunk, eps
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def _heads(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.heads, -1).transpose(1, 2)

    def forward(self, x):
        b, n, d = x.shape
        q = phi(self._heads(self.to_q(x)))
        k = phi(self._heads(self.to_k(x)))
        v = self._heads(self.to_v(x))
        e = d // self.heads

        state = x.new_zeros(b, self.heads, e, e)
        norm = x.new_zeros(b, self.heads, e)
        outs = []
        for qc, kc, vc in zip(q.split(self.chunk, 2), k.split(self.chunk, 2), v.split(self.chunk, 2)):
            local = torch.tril(qc @ kc.transpose(-1, -2))
            num = local @ vc + qc @ state
            den = local.sum(-1) + (qc @ norm.unsqueeze(-1)).squeeze(-1)
            outs.append(num / (den + self.eps).unsqueeze(-1))
            state = state + kc.transpose(-1, -2) @ vc
            norm = norm + kc.sum(dim=2)
        y = torch.cat(outs, dim=2).transpose(1, 2).reshape(b, n, d)
        return self.to_out(y)
