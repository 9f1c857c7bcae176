import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4  # finite: a token falls back on itself when nothing else is visible


class SharedQKAttention(nn.Module):
    """
    Full (not hashed) shared-QK attention of the Reformer.

    One projection gives queries and keys, the keys are normalised to unit length. As q_i and k_i are parallel,
    a token would always look at itself; it may do so only as a last resort, e.g. the first token of a causal
    sequence.
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
        # input_mask: (b, t) bool, True for tokens
        b, t, c = x.shape
        qk = self.toqk(x).view(b, t, self.heads, -1).transpose(1, 2)
        v = self.tov(x).view(b, t, self.heads, -1).transpose(1, 2)

        q = qk
        k = F.normalize(qk, p=2, dim=-1)
        dots = torch.einsum("bhie,bhje->bhij", q, k) * (c // self.heads) ** -0.5

        i = torch.arange(t, device=x.device)
        dots = dots.masked_fill(i[:, None] == i[None, :], TOKEN_SELF_ATTN_VALUE)

        mask_value = -torch.finfo(dots.dtype).max
        if input_mask is not None:
            dots = dots.masked_fill(~input_mask[:, None, None, :], mask_value)
        if self.causal:
            dots = dots.masked_fill(i[:, None] < i[None, :], mask_value)

        attn = self.dropout(dots.softmax(dim=-1))
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, c))
