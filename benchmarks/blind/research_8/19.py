import math

import torch
import torch.nn as nn


class ProbSparseSelfAttention(nn.Module):
    """Informer's ProbSparse attention, causal variant for the decoder.

    Only the ``u = factor * ln(L)`` most peaked queries compute full attention, the others
    take the running mean of the values.
    """

    def __init__(self, d_model=64, n_heads=4, factor=3):
        super().__init__()
        self.n_heads = n_heads
        self.factor = factor
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def _select(self, q, k, n_sample, n_top):
        b, h, l, d = q.shape
        idx = torch.randint(l, (l, n_sample), device=q.device)
        k_sample = k[:, :, idx]
        qk = torch.einsum("bhld,bhlsd->bhls", q, k_sample)
        sparsity = qk.max(-1)[0] - qk.sum(-1) / l
        return sparsity.topk(n_top, sorted=False)[1]

    def forward(self, x):
        b, l, dm = x.shape
        h, d = self.n_heads, dm // self.n_heads
        q = self.query(x).view(b, l, h, d).transpose(1, 2)
        k = self.key(x).view(b, l, h, d).transpose(1, 2)
        v = self.value(x).view(b, l, h, d).transpose(1, 2)

        u = min(l, self.factor * int(math.ceil(math.log(l + 1))))
        top = self._select(q, k, u, u)
        q_top = q.gather(2, top.unsqueeze(-1).expand(-1, -1, -1, d))

        scores = q_top @ k.transpose(-1, -2) / math.sqrt(d)
        causal = torch.ones(u, l, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(causal, float("-inf"))
        active = scores.softmax(-1) @ v

        steps = torch.arange(1, l + 1, device=x.device, dtype=v.dtype).view(1, 1, l, 1)
        context = v.cumsum(dim=2) / steps
        context = context.scatter(2, top.unsqueeze(-1).expand(-1, -1, -1, d), active)
        return self.out(context.transpose(1, 2).reshape(b, l, dm))
