import torch
import torch.nn as nn


class TalkingHeadsAttention(nn.Module):
    """Heads exchange information before and after the softmax (Shazeer et al., 2020).

    After the second mixing the weights of a head no longer add up to one and may be
    negative. The mask goes in between the first mixing and the softmax: minus
    infinity would not survive a linear map over heads.
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.mix_logits = nn.Parameter(torch.eye(num_heads) + 0.02 * torch.randn(num_heads, num_heads))
        self.mix_weights = nn.Parameter(torch.eye(num_heads) + 0.02 * torch.randn(num_heads, num_heads))
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, keep=None):
        """keep: (batch, n) bool, True for tokens that may be attended to."""
        b, n, c = x.shape
        q = self.to_q(x).view(b, n, self.num_heads, -1)
        k, v = (z.view(b, n, self.num_heads, -1) for z in self.to_kv(x).chunk(2, dim=-1))
        logits = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale
        logits = torch.einsum("bhij,hg->bgij", logits, self.mix_logits)
        if keep is not None:
            logits = logits.masked_fill(~keep[:, None, None], -torch.finfo(logits.dtype).max)
        weights = logits.softmax(dim=-1)
        weights = torch.einsum("bgij,gh->bhij", weights, self.mix_weights)
        return self.to_out(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(b, n, c))
