import torch
from torch import nn


def blockwise_attention(q, k, v, block_size, scale):
    """Memory-efficient softmax attention. Keys are visited in blocks, only running
    statistics are kept. q, k, v: (batch, heads, length, dim)."""
    n_k = k.shape[-2]
    acc = torch.zeros_like(q)
    row_max = torch.full(q.shape[:-1] + (1,), float("-inf"), device=q.device, dtype=q.dtype)
    row_sum = torch.zeros_like(row_max)

    for start in range(0, n_k, block_size):
        kb = k[..., start:start + block_size, :]
        vb = v[..., start:start + block_size, :]
        s = torch.matmul(q, kb.transpose(-1, -2)) * scale

        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        correction = torch.exp(row_max - new_max)

        row_sum = row_sum + p.sum(dim=-1, keepdim=True)
        acc = acc * correction + torch.matmul(p, vb)
        row_max = new_max

    return acc / row_sum


class BlockwiseSelfAttention(nn.Module):
    def __init__(self, dim=64, num_heads=4, block_size=4):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.block_size = block_size
        self.in_proj = nn.Linear(dim, dim * 3)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (
            t.reshape(b, n, self.num_heads, -1).transpose(1, 2)
            for t in self.in_proj(x).chunk(3, dim=-1)
        )
        out = blockwise_attention(q, k, v, self.block_size, self.scale)
        return self.out_proj(out.transpose(1, 2).reshape(b, n, d))
