import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4


class SharedQKAttention(nn.Module):
    """Full (non-hashed) version of the Reformer attention, used for short inputs and for tests.

    Queries and keys share one projection. Keys are the unit-normalised queries. Since the
    product of a vector with itself dominates its row, a token attends to itself only if it has
    nothing else to attend to: its own logit is set to TOKEN_SELF_ATTN_VALUE, which is above the
    value used for hard masking.

    input_mask: (batch, length) bool, True for valid positions.
    """

    def __init__(self, dim=64, heads=4, causal=True, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.toqk = nn.Linear(dim, dim, bias=False)
        self.tov = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, input_mask=None):
        b, t, d = x.shape
        h = self.heads
        qk = self.toqk(x).view(b, t, h, d // h).transpose(1, 2)
        v = self.tov(x).view(b, t, h, d // h).transpose(1, 2)

        k = F.normalize(qk, p=2, dim=-1)
        dots = torch.einsum("bhie,bhje->bhij", qk, k) * ((d // h) ** -0.5)

        eye = torch.eye(t, dtype=torch.bool, device=x.device)
        dots = dots.masked_fill(eye, TOKEN_SELF_ATTN_VALUE)

        neg = -torch.finfo(dots.dtype).max
        if input_mask is not None:
            dots = dots.masked_fill(~input_mask[:, None, None, :], neg)
        if self.causal:
            i, j = torch.triu_indices(t, t, 1, device=x.device)
            dots[:, :, i, j] = neg

        attn = self.dropout(dots.softmax(dim=-1))
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, d))
