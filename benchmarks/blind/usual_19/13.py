import torch
from torch import nn


class GroupedQueryAttention(nn.Module):
    """Causal grouped-query attention (Ainslie et al., 2023) written with einsum.

    Query head h belongs to key/value group h // (num_heads // num_kv_groups).
    """

    def __init__(self, dim: int = 64, num_heads: int = 8, num_kv_groups: int = 4):
        super().__init__()
        if num_heads % num_kv_groups:
            raise ValueError("num_heads must be a multiple of num_kv_groups")
        self.num_heads = num_heads
        self.groups = num_kv_groups
        self.per_group = num_heads // num_kv_groups
        self.head_dim = dim // num_heads
        self.wq = nn.Linear(dim, num_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, num_kv_groups * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, num_kv_groups * self.head_dim, bias=False)
        self.wo = nn.Linear(num_heads * self.head_dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.groups, self.per_group, self.head_dim)
        k = self.wk(x).view(b, t, self.groups, self.head_dim)
        v = self.wv(x).view(b, t, self.groups, self.head_dim)

        logits = torch.einsum("btgrd,bsgd->bgrts", q, k) * self.head_dim ** -0.5
        logits = logits.reshape(b, self.num_heads, t, t)

        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        probs = logits.masked_fill(future, float("-inf")).softmax(dim=-1)

        v = v.repeat(1, 1, self.per_group, 1)
        out = torch.einsum("bhts,bshd->bthd", probs, v)
        return self.wo(out.reshape(b, t, -1))
