import math

import torch
from torch import nn

LOG2E = 1.4426950408889634


class FlashReference(nn.Module):
    """Plain PyTorch version of the two-loop flash-attention schedule (causal).

    Works in base 2: log2(e) is folded into the scale and exp2 is used, which is the
    same softmax. Key blocks that lie wholly in the future of a query block are skipped.
    """

    def __init__(self, dim=128, num_heads=4, block_q=16, block_k=8):
        super().__init__()
        self.num_heads = num_heads
        self.block_q, self.block_k = block_q, block_k
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, N, C = x.shape
        d = C // self.num_heads
        q, k, v = (
            t.view(B, N, self.num_heads, d).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        q = q * (LOG2E / math.sqrt(d))

        rows = []
        for q0 in range(0, N, self.block_q):
            q1 = min(q0 + self.block_q, N)
            qi = q[:, :, q0:q1]
            m = qi.new_full((B, self.num_heads, q1 - q0), -math.inf)
            l = qi.new_zeros((B, self.num_heads, q1 - q0))
            o = torch.zeros_like(qi)
            for k0 in range(0, q1, self.block_k):
                k1 = min(k0 + self.block_k, N)
                s = qi @ k[:, :, k0:k1].transpose(-1, -2)
                if k1 - 1 > q0:
                    qpos = torch.arange(q0, q1, device=x.device)
                    kpos = torch.arange(k0, k1, device=x.device)
                    s = s.masked_fill(kpos[None, :] > qpos[:, None], -math.inf)
                m_new = torch.maximum(m, s.amax(dim=-1))
                p = torch.exp2(s - m_new[..., None])
                fix = torch.exp2(m - m_new)
                l = l * fix + p.sum(dim=-1)
                o = o * fix[..., None] + p @ v[:, :, k0:k1]
                m = m_new
            rows.append(o / l[..., None])

        out = torch.cat(rows, dim=2).transpose(1, 2).reshape(B, N, C)
        return self.to_out(out)
