import torch
import torch.nn as nn


class BlockwiseAttention(nn.Module):
    """Exact softmax attention in O(N) memory: keys and values are visited in blocks
    and the softmax is accumulated with a running maximum.

    Parameters
    ----------
    dim : int
        Model width.
    num_heads : int
    block_size : int
        Number of keys handled at once.
    """

    def __init__(self, dim=64, num_heads=4, block_size=16):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.q_proj = nn.Linear(dim, dim)
        self.kv_proj = nn.Linear(dim, 2 * dim)
        self.o_proj = nn.Linear(dim, dim)

    def _split(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, context=None):
        context = x if context is None else context
        b, n, c = x.shape
        q = self._split(self.q_proj(x)) * self.head_dim ** -0.5
        k, v = (self._split(t) for t in self.kv_proj(context).chunk(2, dim=-1))

        acc = torch.zeros_like(q)
        denom = q.new_zeros(*q.shape[:-1], 1)
        running_max = q.new_full((*q.shape[:-1], 1), float("-inf"))

        for k_blk, v_blk in zip(k.split(self.block_size, dim=2), v.split(self.block_size, dim=2)):
            s = q @ k_blk.transpose(-1, -2)
            new_max = torch.maximum(running_max, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - new_max)
            correction = torch.exp(running_max - new_max)
            acc = acc * correction + p @ v_blk
            denom = denom + p.sum(dim=-1, keepdim=True)
            running_max = new_max

        out = acc / denom
        return self.o_proj(out.transpose(1, 2).reshape(b, n, c))
