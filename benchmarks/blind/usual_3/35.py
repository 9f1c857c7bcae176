import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4


class SharedQKAttention(nn.Module):
    """Full attention with shared queries and keys (Reformer).

    There is only one projection for queries and keys; the keys are the queries scaled to
    unit length. Since a token is then most similar to itself, its own position gets a
    large but finite penalty: a token attends to itself only if there is nothing else, as is
    the case for the first token of a causal sequence.
    """

    def __init__(self, dim=64, heads=4, causal=True, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.causal = causal
        self.toqk = nn.Linear(dim, dim, bias=False)
        self.tov = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, input_mask=None):
        # input_mask: (b, t) bool, True for tokens, False for padding (on the right)
        b, t, dim = x.shape
        qk = self.toqk(x).view(b, t, self.heads, self.dim_head).transpose(1, 2)
        v = self.tov(x).view(b, t, self.heads, self.dim_head).transpose(1, 2)

        k = F.normalize(qk, p=2, dim=-1)
        dot = torch.einsum("bhie,bhje->bhij", qk, k) * (self.dim_head ** -0.5)

        i = torch.arange(t, device=x.device)
        dot = dot.masked_fill(i[:, None] == i[None, :], TOKEN_SELF_ATTN_VALUE)

        masked_value = torch.finfo(dot.dtype).min
        if input_mask is not None:
            dot = dot.masked_fill(~input_mask[:, None, None, :], masked_value)
        if self.causal:
            dot = dot.masked_fill(i[:, None] < i[None, :], masked_value)

        attn = self.dropout(dot.softmax(dim=-1))
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, dim))
