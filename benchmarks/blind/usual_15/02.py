import torch
import torch.nn as nn


class Head(nn.Module):
    def __init__(self, dim, head_dim):
        super().__init__()
        self.q = nn.Linear(dim, head_dim, bias=False)
        self.k = nn.Linear(dim, head_dim, bias=False)
        self.v = nn.Linear(dim, head_dim, bias=False)
        self.o = nn.Linear(head_dim, dim, bias=False)
        self.scale = head_dim ** -0.5

    def forward(self, x, bias):
        w = (self.q(x) * self.scale) @ self.k(x).mT
        w = torch.softmax(w + bias, dim=-1)
        return self.o(w @ self.v(x))


class SummedHeads(nn.Module):
    """Causal multi-head attention where no head is ever concatenated.

    Every head has its own way back to the model width and the results are
    added up. Multiplying a concatenation by W_o is the same sum of products,
    one block of rows of W_o per head.
    """

    def __init__(self, dim=48, num_heads=6):
        super().__init__()
        assert dim % num_heads == 0
        self.heads = nn.ModuleList([Head(dim, dim // num_heads) for _ in range(num_heads)])
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        t = x.size(1)
        causal = torch.full((t, t), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        out = self.bias.expand_as(x)
        for head in self.heads:
            out = out + head(x, causal)
        return out
