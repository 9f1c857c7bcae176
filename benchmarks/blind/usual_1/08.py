import torch
from torch import nn, einsum
from einops import rearrange


def exists(val):
    return val is not None


class TalkingHeadsAttention(nn.Module):
    """
    Talking-heads attention (https://arxiv.org/abs/2003.02436).

    Logits are mixed across the heads before the softmax, the weights after it. The weights that
    reach the values need not be positive nor sum to one; this is by design.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, causal=False):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.causal = causal
        self.scale = dim_head ** -0.5

        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.pre_softmax_proj = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.post_softmax_proj = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, mask=None):
        """mask: (b, n) boolean, True for tokens to keep."""
        n, device = x.shape[1], x.device
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=self.heads), (q, k, v))

        dots = einsum('b h i d, b h j d -> b h i j', q * self.scale, k)
        dots = einsum('b h i j, h g -> b g i j', dots, self.pre_softmax_proj)

        max_neg_value = -torch.finfo(dots.dtype).max
        if exists(mask):
            dots = dots.masked_fill(~rearrange(mask, 'b j -> b 1 1 j'), max_neg_value)
        if self.causal:
            causal_mask = torch.ones(n, n, dtype=torch.bool, device=device).triu(1)
            dots = dots.masked_fill(causal_mask, max_neg_value)

        attn = dots.softmax(dim=-1)
        attn = einsum('b h i j, h g -> b g i j', attn, self.post_softmax_proj)

        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))
