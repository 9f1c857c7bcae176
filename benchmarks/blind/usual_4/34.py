import torch
import torch.nn as nn
import torch.nn.functional as F

TOKEN_SELF_ATTN_VALUE = -5e4


class FullQKAttention(nn.Module):
    """Causal attention with a shared query/key projection, as in Reformer.

    The keys are the queries brought to unit length. As a token would then mostly attend to
    itself, its own logit is set to a large negative number which is still far above the value
    for masked positions: it looks at itself only when there is nothing else.
    """

    def __init__(self, dim=64, heads=4, dropout=0.):
        super().__init__()
        self.heads = heads
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, input_mask=None):
        b, t, e = x.shape
        h = self.heads

        qk = self.to_qk(x).view(b, t, h, e // h).transpose(1, 2)
        v = self.to_v(x).view(b, t, h, e // h).transpose(1, 2)
        k = F.normalize(qk, 2, dim=-1)

        dot = torch.einsum('bhie,bhje->bhij', qk, k) * ((e // h) ** -0.5)
        dot = dot.float()

        own = torch.arange(t, device=x.device)
        dot[:, :, own, own] = TOKEN_SELF_ATTN_VALUE

        masked_value = torch.finfo(dot.dtype).min
        i, j = torch.triu_indices(t, t, 1, device=x.device)
        dot[:, :, i, j] = masked_value
        if input_mask is not None:
            dot = dot.masked_fill(~input_mask[:, None, None, :], masked_value)

        dot = self.dropout(dot.softmax(dim=-1)).type_as(v)
        out = torch.einsum('bhij,bhje->bhie', dot, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, e))
