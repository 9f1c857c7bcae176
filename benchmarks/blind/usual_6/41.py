import math

import torch
import torch.nn as nn


class FlashStyleCausalAttention(nn.Module):
    """Causal attention tile by tile, after FlashAttention: query tiles outside, key tiles
    inside, online softmax. Tiles above the diagonal are skipped altogether, so the loop
    over the keys ends early and only tiles that touch the diagonal are masked.
    """

    NEG = -1e30

    def __init__(self, dim=64, num_heads=4, q_block=16, k_block=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_block, self.k_block = q_block, k_block
        self.qkv = nn.Linear(dim, dim * 3)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scale = 1.0 / math.sqrt(self.head_dim)

        tiles = []
        for q0 in range(0, N, self.q_block):
            q1 = min(q0 + self.q_block, N)
            qi = q[:, :, q0:q1] * scale
            m = qi.new_full((B, self.num_heads, q1 - q0, 1), self.NEG, dtype=torch.float32)
            l = torch.zeros_like(m)
            o = torch.zeros_like(qi, dtype=torch.float32)

            for k0 in range(0, q1, self.k_block):
                k1 = min(k0 + self.k_block, N)
                s = (qi @ k[:, :, k0:k1].transpose(-1, -2)).float()
                if k1 - 1 > q0:
                    rows = torch.arange(q0, q1, device=x.device)[:, None]
                    cols = torch.arange(k0, k1, device=x.device)[None, :]
                    s = s.masked_fill(cols > rows, self.NEG)
                m_new = torch.maximum(m, s.amax(-1, keepdim=True))
                alpha = torch.exp(m - m_new)
                p = torch.exp(s - m_new)
                l = alpha * l + p.sum(-1, keepdim=True)
                o = alpha * o + p @ v[:, :, k0:k1].float()
                m = m_new
            tiles.append((o / l).to(x.dtype))

        y = torch.cat(tiles, dim=2)
        return self.out(y.transpose(1, 2).reshape(B, N, C))
