import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4


class FullQKAttention(nn.Module):
    """Shared-QK attention (Reformer), the exact version without hashing.

    Queries and keys come from one projection, keys are the queries at unit length. Since
    a token would always match itself best, it may attend to itself only if there is
    nothing else to attend to: its own logit is set to a finite, very low value that is
    still above the value of masked positions.

    input_mask: bool [B, T], True for tokens that exist.
    """

    def __init__(self, dim=64, num_heads=4, causal=True, dropout=0.0):
        super().__init__()
        self.heads = num_heads
        self.causal = causal
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, input_mask=None):
        b, t, c = x.shape
        qk = self.to_qk(x).view(b, t, self.heads, -1).transpose(1, 2)
        v = self.to_v(x).view(b, t, self.heads, -1).transpose(1, 2)

        q, k = qk, F.normalize(qk, dim=-1)
        dots = torch.einsum("bhie,bhje->bhij", q, k) * q.size(-1) ** -0.5

        own = torch.eye(t, dtype=torch.bool, device=x.device)
        dots = dots.masked_fill(own, TOKEN_SELF_ATTN_VALUE)

        lowest = torch.finfo(dots.dtype).min
        if input_mask is not None:
            dots = dots.masked_fill(~input_mask[:, None, None, :], lowest)
        if self.causal:
            dots = dots.masked_fill(torch.ones_like(own).triu(1), lowest)

        attn = self.dropout(dots.softmax(dim=-1))
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, c))
