import torch
from einops import rearrange
from torch import einsum, nn


class TalkingHeadsAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020).

    Heads are mixed linearly before and after the softmax. Because of the second mixing the rows of the
    final weights are no distributions any more.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, causal=True, dropout=0.0):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.causal = causal
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.mix_logits = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))
        self.mix_weights = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x):
        n, device = x.shape[1], x.device
        q, k, v = (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))

        dots = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        dots = einsum("b h i j, h g -> b g i j", dots, self.mix_logits)

        if self.causal:
            hidden = torch.ones(n, n, dtype=torch.bool, device=device).triu(1)
            dots = dots.masked_fill(hidden, -torch.finfo(dots.dtype).max)

        attn = self.dropout(dots.softmax(dim=-1))
        attn = einsum("b h i j, h g -> b g i j", attn, self.mix_weights)

        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
