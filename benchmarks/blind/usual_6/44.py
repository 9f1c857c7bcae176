import torch
import torch.nn as nn
import torch.nn.functional as F

SELF_VALUE = -5e4


class SharedQKAttention(nn.Module):
    """Full shared-QK attention as in the Reformer.

    Queries and keys are the same projection; the keys are brought to unit length. A
    token would always look at itself this way, so the diagonal gets -5e4: it is used
    only where nothing else is visible, i.e. by the first token.
    """

    def __init__(self, dim=64, heads=4, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        qk = self.to_qk(x).view(b, t, self.heads, -1).transpose(1, 2)
        v = self.to_v(x).view(b, t, self.heads, -1).transpose(1, 2)

        q = qk
        k = F.normalize(qk, p=2, dim=-1)
        dot = torch.einsum('bhie,bhje->bhij', q, k) * (q.size(-1) ** -0.5)

        diagonal = torch.eye(t, dtype=torch.bool, device=x.device)
        dot = dot.masked_fill(diagonal, SELF_VALUE)
        if self.causal:
            i = torch.arange(t, device=x.device)
            dot = dot.masked_fill(i[None, :] > i[:, None], float('-inf'))

        out = torch.einsum('bhij,bhje->bhie', dot.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, d))
