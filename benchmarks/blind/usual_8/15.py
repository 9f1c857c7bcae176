import torch
from torch import nn, einsum


class TalkingHeadsAttention(nn.Module):
    """Causal talking-heads attention (Shazeer et al., 2020).

    Logits are mixed across heads before the softmax and weights are mixed across heads
    after it. The heads are simply concatenated: the block that uses this layer has its own
    output projection.
    """

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.scale = self.dim_head ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.pre_softmax_proj = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))
        self.post_softmax_proj = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))

    def forward(self, x):
        b, n, d = x.shape
        q = self.to_q(x).view(b, n, self.heads, self.dim_head)
        k, v = self.to_kv(x).view(b, n, 2, self.heads, self.dim_head).unbind(2)

        sim = einsum("b i h d, b j h d -> b h i j", q * self.scale, k)
        sim = einsum("b h i j, h g -> b g i j", sim, self.pre_softmax_proj)

        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(causal, -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        attn = einsum("b h i j, h g -> b g i j", attn, self.post_softmax_proj)

        out = einsum("b h i j, b j h d -> b i h d", attn, v)
        return out.reshape(b, n, d)
