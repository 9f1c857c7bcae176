import torch
import torch.nn as nn


class BlockwiseAttention(nn.Module):
    """Exact self-attention without the full score matrix: keys are visited block by
    block with a running maximum and a running normaliser."""

    def __init__(self, dim=128, num_heads=4, block_size=16):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.scale = self.head_dim ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def _attend(self, q, k, v):
        row_max = torch.full_like(q[..., :1], float("-inf"))
        row_sum = torch.zeros_like(q[..., :1])
        acc = torch.zeros_like(q)
        for start in range(0, k.size(2), self.block_size):
            k_blk = k[:, :, start:start + self.block_size]
            v_blk = v[:, :, start:start + self.block_size]
            s = (q @ k_blk.transpose(-2, -1)) * self.scale
            new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - new_max)
            alpha = torch.exp(row_max - new_max)
            row_sum = row_sum * alpha + p.sum(dim=-1, keepdim=True)
            acc = acc + p @ v_blk
            row_max = new_max
        return acc / row_sum

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = self._attend(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))
