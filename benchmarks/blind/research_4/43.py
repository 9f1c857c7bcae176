import torch
import torch.nn as nn


def blockwise_attention(q, k, v, block, causal):
    """Exact attention that visits the keys block by block and keeps running softmax statistics.

    q, k, v: [B, H, T, d]. Memory grows with ``T * block`` and not with ``T * T``.
    """
    t, d = q.shape[-2:]
    q = q * d**-0.5
    row = torch.arange(t, device=q.device).unsqueeze(-1)
    row_max = q.new_full(q.shape[:-1] + (1,), float("-inf"))
    row_sum = torch.zeros_like(row_max)
    acc = torch.zeros_like(q)

    for start in range(0, k.size(-2), block):
        kb = k[..., start : start + block, :]
        vb = v[..., start : start + block, :]
        s = q @ kb.transpose(-1, -2)
        if causal:
            col = torch.arange(start, start + kb.size(-2), device=q.device)
            s = s.masked_fill(col > row, float("-inf"))
        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        alpha = torch.exp(row_max - new_max)
        row_sum = row_sum * alpha + p.sum(dim=-1, keepdim=True)
        acc = acc + p @ vb
        row_max = new_max

    return acc / row_sum


class BlockwiseSelfAttention(nn.Module):
    """Multi-head attention for long inputs, in plain PyTorch.

    Args:
        dim: width.
        num_heads: number of heads.
        block_size: keys per step.
        causal: whether the future is hidden.
    """

    def __init__(self, dim=128, num_heads=4, block_size=16, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.block_size = block_size
        self.causal = causal
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        y = blockwise_attention(q, k, v, self.block_size, self.causal)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, c))
