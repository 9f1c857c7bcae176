import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4  # carefully set for half precision to work


class FullQKAttention(nn.Module):
    """Shared-QK attention of Reformer, full version without hashing.

    Queries and keys are one projection; the keys are brought to unit length. A token would always match itself best,
    so it attends to itself only if it has nothing else to attend to (Kitaev et al., section 2).

    Args:
        x: (B, T, dim)
        input_mask: optional (B, T) bool, True for tokens
    """

    def __init__(self, dim=64, num_heads=4, causal=True, dropout=0.):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.dropout = nn.Dropout(dropout)
        self.toqk = nn.Linear(dim, dim, bias=False)
        self.tov = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, input_mask=None):
        b, t, c = x.shape
        h, d = self.num_heads, c // self.num_heads
        qk = self.toqk(x).view(b, t, h, d).transpose(1, 2)
        v = self.tov(x).view(b, t, h, d).transpose(1, 2)

        q = qk
        k = F.normalize(qk, p=2, dim=-1).type_as(q)
        dot = torch.einsum('bhie,bhje->bhij', q, k) * (d ** -0.5)

        i = torch.arange(t, device=x.device)
        dot = dot.masked_fill(i[:, None] == i[None, :], TOKEN_SELF_ATTN_VALUE)

        masked_value = -torch.finfo(dot.dtype).max
        if input_mask is not None:
            dot = dot.masked_fill(~input_mask[:, None, None, :], masked_value)
        if self.causal:
            dot = dot.masked_fill(i[None, :] > i[:, None], masked_value)

        dot = self.dropout(dot.softmax(dim=-1))
        out = torch.einsum('bhij,bhje->bhie', dot, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, c))
