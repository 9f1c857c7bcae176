import torch
from torch import nn, einsum


class TalkingHeadsAttention(nn.Module):
    """https://arxiv.org/abs/2003.02436, with the number of softmax heads free of the number of q/k heads."""

    def __init__(self, dim=64, qk_heads=4, softmax_heads=8, v_heads=4, dim_head=16):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.wq = nn.Parameter(torch.randn(dim, qk_heads, dim_head) * dim ** -0.5)
        self.wk = nn.Parameter(torch.randn(dim, qk_heads, dim_head) * dim ** -0.5)
        self.wv = nn.Parameter(torch.randn(dim, v_heads, dim_head) * dim ** -0.5)
        self.wo = nn.Parameter(torch.randn(v_heads, dim_head, dim) * (v_heads * dim_head) ** -0.5)
        self.pl = nn.Parameter(torch.randn(qk_heads, softmax_heads) * qk_heads ** -0.5)
        self.pw = nn.Parameter(torch.randn(softmax_heads, v_heads) * softmax_heads ** -0.5)

    def forward(self, x, context=None, key_mask=None):
        """key_mask: (b, m) bool, True = may be looked at."""
        m = x if context is None else context

        q = einsum("b n d, d h k -> b n h k", x, self.wq)
        k = einsum("b m d, d h k -> b m h k", m, self.wk)
        v = einsum("b m d, d h k -> b m h k", m, self.wv)

        j = einsum("b n h k, b m h k -> b n m h", q, k) * self.scale
        logits = einsum("b n m h, h s -> b n m s", j, self.pl)
        if key_mask is not None:
            logits = logits.masked_fill(~key_mask[:, None, :, None], -1e9)
        weights = logits.softmax(dim=2)
        weights = einsum("b n m s, s h -> b n m h", weights, self.pw)

        o = einsum("b n m h, b m h k -> b n h k", weights, v)
        return einsum("b n h k, h k d -> b n d", o, self.wo)
