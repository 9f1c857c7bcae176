import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Causal attention with one learned sink logit per head (gpt-oss).

    The sink takes part in the softmax normalisation and is then dropped, so the rows of the
    returned weights sum to less than one.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_kv_heads: int = 2):
        super().__init__()
        self.h, self.kv = num_heads, num_kv_heads
        self.d = dim // num_heads
        self.qkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * self.d)
        self.out = nn.Linear(num_heads * self.d, dim)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, x, need_weights: bool = False):
        n, t, _ = x.shape
        qkv = self.qkv(x)
        q, k, v = qkv.split([self.h * self.d, self.kv * self.d, self.kv * self.d], dim=-1)
        q = q.view(n, t, self.kv, self.h // self.kv, self.d)
        k = k.view(n, t, self.kv, self.d)
        v = v.view(n, t, self.kv, self.d)
        qk = torch.einsum("nqkgd,nskd->nkgqs", q, k) * self.d**-0.5
        future = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), diagonal=1)
        qk = qk.masked_fill(future, float("-inf"))
        s = self.sinks.view(1, self.kv, self.h // self.kv, 1, 1).expand(n, -1, -1, t, 1)
        w = torch.softmax(torch.cat([qk, s.to(qk.dtype)], dim=-1).float(), dim=-1)
        w = w[..., :-1].to(v.dtype)
        o = torch.einsum("nkgqs,nskd->nqkgd", w, v).reshape(n, t, self.h * self.d)
        o = self.out(o)
        if need_weights:
            return o, w.reshape(n, self.h, t, t)
        return o
