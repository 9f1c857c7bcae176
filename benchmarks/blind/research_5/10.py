import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Grouped-query causal attention with one learned sink logit per head.

    The sink takes part in the softmax as an extra column and is thrown away afterwards, so the
    weights over real tokens sum to less than one. That is intended: a head can choose to attend to
    nothing. ``sliding_window`` counts the current token.
    """

    def __init__(self, hidden_size=64, num_heads=8, num_kv_heads=2, head_dim=16, sliding_window=None):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.sliding_window = sliding_window
        self.sm_scale = head_dim ** -0.5
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.qkv = nn.Linear(hidden_size, (num_heads + 2 * num_kv_heads) * head_dim)
        self.out = nn.Linear(num_heads * head_dim, hidden_size)

    def forward(self, x):
        b, t, _ = x.shape
        groups = self.num_heads // self.num_kv_heads
        q, k, v = self.qkv(x).split(
            [self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim],
            dim=-1,
        )
        q = q.view(b, t, self.num_kv_heads, groups, self.head_dim)
        k = k.view(b, t, self.num_kv_heads, self.head_dim)
        v = v.view(b, t, self.num_kv_heads, self.head_dim)

        qk = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.sm_scale
        blocked = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        if self.sliding_window is not None:
            blocked = blocked | torch.ones_like(blocked).tril(-self.sliding_window)
        qk = qk.masked_fill(blocked, float("-inf"))

        sinks = self.sinks.view(1, self.num_kv_heads, groups, 1, 1).expand(b, -1, -1, t, 1)
        w = torch.cat([qk, sinks.to(qk.dtype)], dim=-1).softmax(dim=-1)[..., :-1]
        out = torch.einsum("bhgqk,bkhd->bqhgd", w, v)
        return self.out(out.reshape(b, t, -1))
