import torch
from einops import rearrange
from torch import einsum, nn


class TalkingHeadsAttention(nn.Module):
    """Talking-Heads attention (Shazeer et al., 2020), causal or not.

    Logits and probabilities are mixed across heads by two small matrices.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, causal=False, dropout=0.0):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.causal = causal
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.mix_logits = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))
        self.mix_probs = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x, mask=None):
        """mask: (b, n) bool, True = token may be attended to"""
        n, device = x.shape[1], x.device
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))

        dots = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        dots = einsum("b h i j, h g -> b g i j", dots, self.mix_logits)

        neg = -torch.finfo(dots.dtype).max
        if mask is not None:
            dots = dots.masked_fill(~rearrange(mask, "b j -> b 1 1 j"), neg)
        if self.causal:
            dots = dots.masked_fill(torch.ones((n, n), dtype=torch.bool, device=device).triu(1), neg)

        attn = self.dropout(dots.softmax(dim=-1))
        attn = einsum("b h i j, h g -> b g i j", attn, self.mix_probs)

        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
