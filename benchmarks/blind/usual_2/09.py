import torch
import torch.nn as nn


def blockwise_attention(q, k, v, scale, block_size):
    """Exact attention in O(N) memory: walk over key blocks with a running max and a running sum.

    q, k, v: (batch, heads, length, head_dim)
    """
    B, H, N, D = q.shape
    acc = torch.zeros_like(q)
    row_sum = torch.zeros(B, H, N, 1, dtype=q.dtype, device=q.device)
    row_max = torch.full((B, H, N, 1), float("-inf"), dtype=q.dtype, device=q.device)

    for start in range(0, k.shape[2], block_size):
        k_blk = k[:, :, start:start + block_size]
        v_blk = v[:, :, start:start + block_size]

        s = torch.matmul(q, k_blk.transpose(-1, -2)) * scale
        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        correction = torch.exp(row_max - new_max)

        row_sum = row_sum + p.sum(dim=-1, keepdim=True)
        acc = acc * correction + torch.matmul(p, v_blk)
        row_max = new_max

    return acc / row_sum


class MemoryEfficientAttention(nn.Module):
    def __init__(self, dim=128, num_heads=4, block_size=8):
        super().__init__()
        assert dim % num_heads == 0, "dim must be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.qkv = nn.Linear(dim, dim * 3)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = blockwise_attention(q, k, v, self.head_dim ** -0.5, self.block_size)
        y = y.permute(0, 2, 1, 3).reshape(B, N, C)
        return self.out(y)
