import math

import torch
from torch import Tensor, nn

LOG2_E = 1.4426950408889634


class FlashReference(nn.Module):
    """
    Pure PyTorch reference of our tiled causal attention kernel.

    As in the kernel, exponentials are taken in base 2, so log2(e) is folded into the scale of the
    query: 2 ** (log2(e) * s) == e ** s. Key blocks that lie wholly in the future are skipped.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, block_q: int = 16, block_k: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_q = block_q
        self.block_k = block_k
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def _tiled(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[-2]
        rows = torch.arange(n, device=q.device)
        q = q * (LOG2_E / math.sqrt(self.head_dim))
        tiles = []
        for qs in range(0, n, self.block_q):
            qe = min(qs + self.block_q, n)
            qi = q[..., qs:qe, :]
            acc = torch.zeros_like(qi)
            l_i = qi.new_zeros(*qi.shape[:-1], 1)
            m_i = qi.new_full((*qi.shape[:-1], 1), -math.inf)
            for ks in range(0, qe, self.block_k):
                ke = min(ks + self.block_k, n)
                s = qi @ k[..., ks:ke, :].transpose(-1, -2)
                s = s.masked_fill(rows[ks:ke][None, :] > rows[qs:qe][:, None], -math.inf)
                # key 0 is in the first block and visible to every row, so m_new is always finite
                m_new = torch.maximum(m_i, s.amax(-1, keepdim=True))
                alpha = torch.exp2(m_i - m_new)
                p = torch.exp2(s - m_new)
                l_i = l_i * alpha + p.sum(-1, keepdim=True)
                acc = acc * alpha + p @ v[..., ks:ke, :]
                m_i = m_new
            tiles.append(acc / l_i)
        return torch.cat(tiles, dim=-2)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        out = self._tiled(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))
