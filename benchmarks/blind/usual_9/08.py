import torch
from torch import nn


def streaming_attention(q, k, v, block_size, scale, causal):
    """Attention over key blocks with a running softmax, never holding more than (T, block_size) scores.

    q, k, v: (batch, heads, length, head_dim)
    """
    B, H, T, D = q.shape
    S = k.size(2)
    acc = torch.zeros_like(q)
    row_max = q.new_full((B, H, T, 1), float("-inf"))
    row_sum = q.new_zeros((B, H, T, 1))
    rows = torch.arange(T, device=q.device).unsqueeze(1)

    for start in range(0, S, block_size):
        end = min(start + block_size, S)
        k_blk = k[:, :, start:end]
        v_blk = v[:, :, start:end]

        scores = torch.matmul(q, k_blk.transpose(-2, -1)) * scale
        if causal:
            cols = torch.arange(start, end, device=q.device).unsqueeze(0)
            scores = scores.masked_fill(cols > rows, float("-inf"))

        new_max = torch.maximum(row_max, scores.amax(dim=-1, keepdim=True))
        correction = torch.exp(row_max - new_max)
        p = torch.exp(scores - new_max)

        acc = acc * correction + torch.matmul(p, v_blk)
        row_sum = row_sum + p.sum(dim=-1, keepdim=True)
        row_max = new_max

    return acc / row_sum


class MemoryEfficientAttention(nn.Module):
    def __init__(self, dim=256, num_heads=8, block_size=16, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        y = streaming_attention(q, k, v, self.block_size, self.head_dim ** -0.5, self.causal)
        return self.out(y.transpose(1, 2).reshape(B, T, C))
