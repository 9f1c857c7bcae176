import torch
from torch import nn, einsum
from einops import rearrange


class StrictWindowAttention(nn.Module):
    """Causal local attention. A token sees the `window` tokens before it and NOT itself.

    Its own content reaches the output over the residual path of the block. A learned
    null key/value pair is visible to all; the first token has nothing else to look at.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, window=8):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.window = window
        self.scale = dim_head ** -0.5
        self.null_kv = nn.Parameter(torch.randn(2, heads, 1, dim_head))
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x):
        b, n = x.shape[:2]
        q, k, v = rearrange(self.to_qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        nk, nv = self.null_kv.unsqueeze(1).expand(-1, b, -1, -1, -1)
        k = torch.cat((nk, k), dim=-2)
        v = torch.cat((nv, v), dim=-2)

        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        i = torch.arange(n, device=x.device)
        back = rearrange(i, "i -> i 1") - rearrange(i, "j -> 1 j")
        visible = (back >= 1) & (back <= self.window)
        visible = torch.cat((visible.new_ones(n, 1), visible), dim=1)
        sim = sim.masked_fill(~visible, -torch.finfo(sim.dtype).max)

        out = einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
