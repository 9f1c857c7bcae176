import torch
from torch import nn


class SinkAttention(nn.Module):
    """Causal grouped-query attention with one learned sink logit per head.

    The sink takes part in the softmax but carries no value, so the weights on the real
    tokens of a row add up to less than one. A head can thereby choose to do nothing.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 8, num_kv_heads: int = 2, head_dim: int = 16):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.sm_scale = head_dim ** -0.5
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.qkv = nn.Linear(hidden_size, (num_heads + 2 * num_kv_heads) * head_dim)
        self.out = nn.Linear(num_heads * head_dim, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, n, _ = x.shape
        groups = self.num_heads // self.num_kv_heads
        q, k, v = self.qkv(x).split(
            [
                self.num_heads * self.head_dim,
                self.num_kv_heads * self.head_dim,
                self.num_kv_heads * self.head_dim,
            ],
            dim=-1,
        )
        q = q.view(bsz, n, self.num_kv_heads, groups, self.head_dim)
        k = k.view(bsz, n, self.num_kv_heads, self.head_dim)
        v = v.view(bsz, n, self.num_kv_heads, self.head_dim)

        qk = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.sm_scale
        mask = torch.triu(qk.new_full((n, n), float("-inf")), diagonal=1)
        qk = qk + mask

        sinks = self.sinks.view(1, self.num_kv_heads, groups, 1, 1).expand(bsz, -1, -1, n, -1)
        qk = torch.cat([qk, sinks], dim=-1)
        w = torch.softmax(qk, dim=-1)[..., :-1]

        out = torch.einsum("bhgqk,bkhd->bqhgd", w, v)
        return self.out(out.reshape(bsz, n, -1))
