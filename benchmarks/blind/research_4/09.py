import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedQKAttention(nn.Module):
    """Full (not hashed) shared-QK attention of the Reformer.

    One projection serves as query and as key; the key is its unit-length version. As a token is always its own
    best match, a position attends to itself only when there is nothing else: the diagonal gets a large negative
    but finite logit, well above that of the future.

    Args:
        dim: width of the model.
        heads: number of heads.
        causal: hide the future.
    """

    SELF_LOGIT = -5e4

    def __init__(self, dim=128, heads=4, causal=True, dropout=0.0):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.causal = causal
        self.to_qk = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, input_mask=None):
        """``input_mask``: bool [B, T], True for real tokens."""
        b, t, dim = x.shape
        d = dim // self.heads
        qk = self.to_qk(x).view(b, t, self.heads, d).transpose(1, 2)
        v = self.to_v(x).view(b, t, self.heads, d).transpose(1, 2)
        k = F.normalize(qk, p=2, dim=-1)

        dots = torch.einsum("bhid,bhjd->bhij", qk, k) * d**-0.5
        eye = torch.eye(t, dtype=torch.bool, device=x.device)
        dots = dots.masked_fill(eye, self.SELF_LOGIT)

        lowest = torch.finfo(dots.dtype).min
        if input_mask is not None:
            dots = dots.masked_fill(~input_mask[:, None, None, :], lowest)
        if self.causal:
            future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            dots = dots.masked_fill(future, lowest)

        attn = self.drop(dots.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(b, t, dim)
        return self.to_out(out)
