import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Grouped-query attention with one learned sink logit per head.

    The sink is an extra column of the softmax without a value: a head can give part of its
    mass to nothing, so the weights on the real tokens sum to less than one.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 8, num_kv_heads: int = 2, sliding_window: int = 0):
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.groups = num_heads // num_kv_heads
        self.sliding_window = sliding_window
        self.sm_scale = self.head_dim**-0.5
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.qkv = nn.Linear(hidden_size, (num_heads + 2 * num_kv_heads) * self.head_dim)
        self.out = nn.Linear(num_heads * self.head_dim, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        d, g, kv = self.head_dim, self.groups, self.num_kv_heads
        q, k, v = self.qkv(x).split([self.num_heads * d, kv * d, kv * d], dim=-1)
        q = q.view(b, n, kv, g, d)
        k = k.view(b, n, kv, 1, d).expand(b, n, kv, g, d)
        v = v.view(b, n, kv, 1, d).expand(b, n, kv, g, d)

        qk = torch.einsum("bqhmd,bkhmd->bhmqk", q, k) * self.sm_scale
        mask = torch.triu(x.new_full((n, n), -float("inf")), diagonal=1)
        if self.sliding_window > 0:
            mask = mask + torch.tril(x.new_full((n, n), -float("inf")), diagonal=-self.sliding_window)
        qk = qk + mask
        sinks = self.sinks.view(1, kv, g, 1, 1).expand(b, kv, g, n, 1)
        w = torch.softmax(torch.cat([qk, sinks.to(qk.dtype)], dim=-1), dim=-1)[..., :-1]
        out = torch.einsum("bhmqk,bkhmd->bqhmd", w, v)
        return self.out(out.reshape(b, n, -1))
