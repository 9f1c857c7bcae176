import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4  # has to be much larger than the value of a masked position
MASK_VALUE = -1e9


class FullQKAttention(nn.Module):
    """Causal attention with shared queries and keys, as in the Reformer.

    One projection gives both. The keys are scaled to unit length. A token is closest to
    itself by construction, so attention to itself is discouraged with a moderate negative
    value: it is used only when nothing else is visible, as for the first token.
    """

    def __init__(self, dim=64, heads=4, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def split(self, t):
        b, n, d = t.shape
        return t.view(b, n, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x):
        b, n, d = x.shape
        qk = self.split(self.to_qk(x))
        v = self.split(self.to_v(x))

        q = qk
        k = F.normalize(qk, p=2, dim=-1).type_as(qk)
        dot = torch.einsum("bhie,bhje->bhij", q, k) * (qk.shape[-1] ** -0.5)

        i = torch.arange(n, device=x.device)
        dot = dot.masked_fill(i[:, None] == i[None, :], TOKEN_SELF_ATTN_VALUE)
        dot = dot.masked_fill(i[:, None] < i[None, :], MASK_VALUE)

        attn = self.dropout(dot.softmax(dim=-1))
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))
