import math

import torch
from torch import Tensor, nn

LOG2E = 1.4426950408889634


def flash_reference(q: Tensor, k: Tensor, v: Tensor, q_chunk: int, k_chunk: int) -> Tensor:
    """Causal attention in tiles, written the way the GPU kernel does it.

    The softmax uses base 2: log2(e) is folded into the scale of the queries and exp2 replaces exp. Key
    tiles that lie wholly in the future of a query tile are never visited.
    """
    n = q.size(-2)
    q = q * (LOG2E / math.sqrt(q.size(-1)))
    outputs = []
    for i in range(0, n, q_chunk):
        qi = q[..., i:i + q_chunk, :]
        rows = torch.arange(i, i + qi.size(-2), device=q.device)
        last_row = i + qi.size(-2) - 1

        m = torch.full_like(qi[..., :1], float("-inf"))
        l = torch.zeros_like(m)
        o = torch.zeros(*qi.shape[:-1], v.size(-1), dtype=q.dtype, device=q.device)

        for j in range(0, last_row + 1, k_chunk):
            kj = k[..., j:j + k_chunk, :]
            vj = v[..., j:j + k_chunk, :]
            s = qi @ kj.transpose(-1, -2)
            cols = torch.arange(j, j + kj.size(-2), device=q.device)
            s = s.masked_fill(cols[None, :] > rows[:, None], float("-inf"))

            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            alpha = torch.exp2(m - m_new)
            p = torch.exp2(s - m_new)
            l = alpha * l + p.sum(-1, keepdim=True)
            o = alpha * o + p @ vj
            m = m_new
        outputs.append(o / l)
    return torch.cat(outputs, dim=-2)


class TiledCausalAttention(nn.Module):
    def __init__(self, dim: int = 64, num_heads: int = 4, q_chunk: int = 16, k_chunk: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.q_chunk, self.k_chunk = q_chunk, k_chunk
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.wqkv(x).chunk(3, dim=-1)
        )
        y = flash_reference(q, k, v, self.q_chunk, self.k_chunk)
        return self.wo(y.transpose(1, 2).flatten(-2))
