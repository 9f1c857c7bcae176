import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4


class SharedQKAttention(nn.Module):
    """Full (not hashed) variant of the Reformer's shared-QK attention, causal.

    Queries and keys are one projection; the keys are its unit-length version. A token would
    always match itself best, so its own logit is set to -5e4: it attends to itself only when
    there is nothing else, which is the case of the first token. That value is finite on
    purpose, in contrast to the mask of the future.
    """

    def __init__(self, dim: int = 64, heads: int = 4, dropout: float = 0.0):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, t, e = x.shape
        d = e // self.heads
        qk = self.to_qk(x).view(b, t, self.heads, d).transpose(1, 2)
        v = self.to_v(x).view(b, t, self.heads, d).transpose(1, 2)

        k = F.normalize(qk, p=2, dim=-1)
        dots = torch.einsum("bhid,bhjd->bhij", qk, k).float() * d ** -0.5

        itself = torch.eye(t, dtype=torch.bool, device=x.device)
        dots = dots.masked_fill(itself, TOKEN_SELF_ATTN_VALUE)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        dots = dots.masked_fill(future, float("-inf"))

        attn = self.dropout(dots.softmax(dim=-1).type_as(v))
        out = (attn @ v).transpose(1, 2).reshape(b, t, e)
        return self.to_out(out)
