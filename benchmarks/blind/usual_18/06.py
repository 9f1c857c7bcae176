import math
from typing import Optional

import torch
from torch import Tensor, nn


def blockwise_attention(q: Tensor, k: Tensor, v: Tensor, block_size: int, causal: bool) -> Tensor:
    """Memory-efficient attention which visits the keys block by block.

    q, k, v have the shape (batch, heads, length, head_dim). Only one (length, block_size) tile of
    scores is alive at any time; a running maximum keeps the exponentials in range.
    """
    b, h, n, d = q.shape
    m_len = k.size(2)
    scale = 1.0 / math.sqrt(d)

    row_max = q.new_full((b, h, n, 1), float("-inf"))
    row_sum = q.new_zeros((b, h, n, 1))
    acc = q.new_zeros((b, h, n, v.size(-1)))
    q_idx = torch.arange(n, device=q.device)[:, None]

    for start in range(0, m_len, block_size):
        stop = min(start + block_size, m_len)
        k_blk = k[:, :, start:stop]
        v_blk = v[:, :, start:stop]

        tile = torch.matmul(q, k_blk.transpose(-1, -2)) * scale
        if causal:
            k_idx = torch.arange(start, stop, device=q.device)[None, :]
            tile = tile.masked_fill(k_idx > q_idx, float("-inf"))

        new_max = torch.maximum(row_max, tile.amax(dim=-1, keepdim=True))
        p = torch.exp(tile - new_max)
        alpha = torch.exp(row_max - new_max)

        row_sum = row_sum * alpha + p.sum(dim=-1, keepdim=True)
        acc = acc + torch.matmul(p, v_blk)
        row_max = new_max

    return acc / row_sum


class BlockwiseSelfAttention(nn.Module):
    def __init__(self, dim: int = 64, num_heads: int = 4, block_size: int = 8, causal: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.causal = causal
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, block_size: Optional[int] = None) -> Tensor:
        b, n, c = x.shape
        qkv = self.to_qkv(x).view(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = blockwise_attention(q, k, v, block_size or self.block_size, self.causal)
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))
