import torch
import torch.nn as nn


class TalkingHeadsAttention(nn.Module):
    """
    Talking-heads attention (Shazeer et al., 2020) for causal language models.

    The heads' logits are mixed by a learned matrix before the softmax and the heads' weights
    by a second one after it. The second matrix is unconstrained, so the mixed weights need
    not add up to one and may be negative.
    """

    def __init__(self, dim=64, num_heads=4, causal=True, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.pre_softmax = nn.Parameter(torch.eye(num_heads) + 0.02 * torch.randn(num_heads, num_heads))
        self.post_softmax = nn.Parameter(torch.eye(num_heads) + 0.02 * torch.randn(num_heads, num_heads))
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim).unbind(dim=2)

        logits = torch.einsum("bihd,bjhd->bhij", q, k) * self.head_dim ** -0.5
        logits = torch.einsum("bhij,hg->bgij", logits, self.pre_softmax)
        # the mask has to come after the mixing, or -inf would meet the mixing weights
        if self.causal:
            future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            logits = logits.masked_fill(future, float("-inf"))
        weights = logits.softmax(dim=-1)
        weights = torch.einsum("bgij,gh->bhij", weights, self.post_softmax)
        weights = self.drop(weights)

        out = torch.einsum("bhij,bjhd->bihd", weights, v)
        return self.out(out.reshape(b, n, -1))
