import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4  # carefully set for half precision to work


class SharedQKAttention(nn.Module):
    """Full shared-QK attention as used by Reformer in place of LSH for short inputs.

    Queries and keys are the same projection and the keys are normalised to unit length. As a token
    would nearly always prefer itself, its own logit is set to a large negative *finite* value:
    it attends to itself only if there is nothing else to attend to.

    Args:
        input_mask: (batch, length) bool, True for tokens.
    """

    def __init__(self, dim=64, heads=4, causal=True, dropout=0.0):
        super().__init__()
        assert dim % heads == 0, "dimensions must be divisible by number of heads"
        self.heads = heads
        self.dim_head = dim // heads
        self.causal = causal
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, input_mask=None):
        b, t, e = x.shape

        def split_heads(y):
            return y.view(b, t, self.heads, self.dim_head).transpose(1, 2)

        qk, v = split_heads(self.to_qk(x)), split_heads(self.to_v(x))
        q = qk
        k = F.normalize(qk, p=2, dim=-1).type_as(qk)

        dot = torch.einsum("bhie,bhje->bhij", q, k) * (self.dim_head ** -0.5)

        i = torch.arange(t, device=x.device)
        dot = dot.masked_fill(i[:, None] == i[None, :], TOKEN_SELF_ATTN_VALUE)

        masked_value = torch.finfo(dot.dtype).min
        if input_mask is not None:
            dot = dot.masked_fill(~input_mask[:, None, None, :], masked_value)
        if self.causal:
            dot = dot.masked_fill(i[:, None] < i[None, :], masked_value)

        attn = self.dropout(dot.softmax(dim=-1))
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, e))
