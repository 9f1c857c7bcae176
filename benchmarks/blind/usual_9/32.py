import torch
import torch.nn.functional as F
from torch import nn

TOKEN_SELF_ATTN_VALUE = -5e4


class SharedQKAttention(nn.Module):
    """Full attention with one projection for queries and keys, as in Reformer.

    The keys are the queries normalised to unit length. A query would always match its own key best, so a token
    may attend to itself only where nothing else is available: its own logit is set to a large but finite negative
    value, while the future is removed entirely. The first token of a causal model therefore sees itself.
    """

    def __init__(self, dim=128, heads=4, causal=True, dropout=0.0):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.causal = causal
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, t, e = x.shape
        qk = self.to_qk(x).view(b, t, self.heads, -1).transpose(1, 2)
        v = self.to_v(x).view(b, t, self.heads, -1).transpose(1, 2)

        q = qk
        k = F.normalize(qk, p=2, dim=-1)
        dots = torch.einsum("bhie,bhje->bhij", q, k) * (q.shape[-1] ** -0.5)

        i = torch.arange(t, device=x.device)
        itself = i[:, None] == i[None, :]
        dots = dots.masked_fill(itself, TOKEN_SELF_ATTN_VALUE)
        if self.causal:
            dots = dots.masked_fill(i[:, None] < i[None, :], float("-inf"))

        attn = self.dropout(dots.softmax(dim=-1))
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, e))
