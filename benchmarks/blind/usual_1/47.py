import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedQKAttention(nn.Module):
    """Causal attention with shared queries and keys (Reformer).

    Keys are the unit-length queries. A token would match itself best, therefore it does not attend to
    itself at all: position i sees positions 0 .. i-1 and a learned null slot, which is
    all that the first position has.
    """

    def __init__(self, dim=64, heads=4):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.dim_head = dim // heads
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.null_k = nn.Parameter(torch.randn(heads, 1, self.dim_head))
        self.null_v = nn.Parameter(torch.zeros(heads, 1, self.dim_head))
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, _ = x.shape
        qk = self.to_qk(x).view(b, n, self.heads, self.dim_head).transpose(1, 2)
        v = self.to_v(x).view(b, n, self.heads, self.dim_head).transpose(1, 2)

        q = qk
        k = torch.cat((self.null_k.expand(b, -1, -1, -1), qk), dim=2)
        k = F.normalize(k, dim=-1)
        v = torch.cat((self.null_v.expand(b, -1, -1, -1), v), dim=2)

        # column 0 is the null slot, column j + 1 is token j
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.dim_head ** -0.5
        hidden = torch.ones(n, n + 1, dtype=torch.bool, device=x.device).triu(1)
        attn = dots.masked_fill(hidden, float("-inf")).softmax(dim=-1)

        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))
