import torch
from einops import rearrange
from torch import nn, einsum


class TalkingHeads(nn.Module):
    """Talking-heads self-attention with memory key/values.

    The heads are mixed twice: the raw logits before the mask is applied and the
    attention weights after the softmax. The rows of the mixed weights are therefore not
    distributions any more.
    """

    def __init__(self, dim=64, heads=8, dim_head=16, num_mem_kv=2):
        super().__init__()
        self.heads = heads
        self.num_mem_kv = num_mem_kv
        inner = heads * dim_head
        self.scale = dim_head ** -0.5
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.pre_proj = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.post_proj = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.mem_k = nn.Parameter(torch.randn(heads, num_mem_kv, dim_head))
        self.mem_v = nn.Parameter(torch.randn(heads, num_mem_kv, dim_head))
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x, mask=None):
        """mask: bool (b, n), True for tokens"""
        b = x.shape[0]
        q = self.to_q(x)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=self.heads) for t in (q, k, v))
        k = torch.cat((self.mem_k.expand(b, -1, -1, -1), k), dim=2)
        v = torch.cat((self.mem_v.expand(b, -1, -1, -1), v), dim=2)

        dots = einsum('b h i d, b h j d -> b h i j', q, k) * self.scale
        dots = einsum('b h i j, h g -> b g i j', dots, self.pre_proj)

        if mask is not None:
            always = mask.new_ones(b, self.num_mem_kv)
            keep = torch.cat((always, mask), dim=1)
            dots = dots.masked_fill(~rearrange(keep, 'b j -> b () () j'), -torch.finfo(dots.dtype).max)

        attn = dots.softmax(dim=-1)
        attn = einsum('b h i j, h g -> b g i j', attn, self.post_proj)

        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))
