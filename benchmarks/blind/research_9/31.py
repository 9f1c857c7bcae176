import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4


class SharedQKAttention(nn.Module):
    """Full (not hashed) attention of the Reformer, used for short sequences.

    Queries and keys are the same projection; the keys are brought to unit length. As a token would
    always be closest to itself, it may attend to itself only if there is no other target: its own logit
    is set to a moderately large negative value, that of a forbidden token to the lowest one.
    """

    def __init__(self, dim=64, heads=4, causal=True, dropout=0.0):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.causal = causal
        self.toqk = nn.Linear(dim, dim, bias=False)
        self.tov = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, input_mask=None):
        """input_mask: [B, T] bool, True for real tokens."""
        b, t, d = x.shape
        qk = self.toqk(x).view(b, t, self.heads, -1).transpose(1, 2)
        v = self.tov(x).view(b, t, self.heads, -1).transpose(1, 2)
        q, k = qk, F.normalize(qk, p=2, dim=-1)

        dot = torch.einsum("bhie,bhje->bhij", q, k) * (d // self.heads) ** -0.5

        own = torch.eye(t, dtype=torch.bool, device=x.device)
        dot = dot.masked_fill(own, TOKEN_SELF_ATTN_VALUE)
        lowest = torch.finfo(dot.dtype).min
        if input_mask is not None:
            dot = dot.masked_fill(~input_mask[:, None, None, :], lowest)
        if self.causal:
            dot = dot.masked_fill(torch.ones_like(own).triu(1), lowest)

        attn = self.dropout(dot.softmax(dim=-1))
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, d))
