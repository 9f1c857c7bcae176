import torch
from torch import nn, einsum
from einops import rearrange


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class MemoryEfficientAttention(nn.Module):
    """ https://arxiv.org/abs/2112.05682 """

    def __init__(self, dim=64, *, heads=4, dim_head=16, q_bucket_size=32, k_bucket_size=16):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.q_bucket_size = q_bucket_size
        self.k_bucket_size = k_bucket_size

        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def attend_chunk(self, q, k, v):
        row_max = q.new_full((*q.shape[:-1], 1), -torch.finfo(q.dtype).max)
        row_sum = q.new_zeros((*q.shape[:-1], 1))
        acc = torch.zeros_like(q)

        for kc, vc in zip(k.split(self.k_bucket_size, dim=-2), v.split(self.k_bucket_size, dim=-2)):
            sim = einsum('b h i d, b h j d -> b h i j', q, kc)

            new_max = torch.maximum(row_max, sim.amax(dim=-1, keepdim=True))
            exp_weights = (sim - new_max).exp()
            correction = (row_max - new_max).exp()

            acc = acc * correction + einsum('b h i j, b h j d -> b h i d', exp_weights, vc)
            row_sum = row_sum + exp_weights.sum(dim=-1, keepdim=True)
            row_max = new_max

        return acc / row_sum.clamp(min=1e-10)

    def forward(self, x, context=None):
        h = self.heads
        context = default(context, x)

        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=h), (q, k, v))
        q = q * self.scale

        out = torch.cat([self.attend_chunk(qc, k, v) for qc in q.split(self.q_bucket_size, dim=-2)], dim=-2)
        out = rearrange(out, 'b h n d -> b n (h d)')
        return self.to_out(out)
