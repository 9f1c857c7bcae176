import torch
import torch.nn as nn


def flash_forward(q, k, v, sm_scale, block_m=16, block_n=16, causal=True):
    """Reference of the FlashAttention-2 forward pass. Returns the output and the log-sum-exp.

    The exponentials are base 2, as in the Triton kernel, so the scale carries a factor log2(e);
    the log-sum-exp is converted back to base e.
    """
    *_, n_q, d = q.shape
    n_k = k.shape[-2]
    log2e = 1.4426950408889634
    qk_scale = sm_scale * log2e
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=v.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    for m0 in range(0, n_q, block_m):
        m1 = min(m0 + block_m, n_q)
        qi = q[..., m0:m1, :].float()
        m_i = torch.full(qi.shape[:-1], float("-inf"), device=q.device)
        l_i = torch.zeros(qi.shape[:-1], device=q.device)
        acc = torch.zeros(*qi.shape[:-1], v.shape[-1], device=q.device)
        hi = min(m1, n_k) if causal else n_k
        for n0 in range(0, hi, block_n):
            n1 = min(n0 + block_n, n_k)
            s = qi @ k[..., n0:n1, :].float().transpose(-1, -2) * qk_scale
            if causal:
                rows = torch.arange(m0, m1, device=q.device)
                cols = torch.arange(n0, n1, device=q.device)
                s = s.masked_fill(cols[None, :] > rows[:, None], float("-inf"))
            m_new = torch.maximum(m_i, s.amax(-1))
            alpha = torch.exp2(m_i - m_new)
            p = torch.exp2(s - m_new[..., None])
            l_i = l_i * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p @ v[..., n0:n1, :].float()
            m_i = m_new
        out[..., m0:m1, :] = (acc / l_i[..., None]).to(v.dtype)
        lse[..., m0:m1] = (m_i + torch.log2(l_i)) / log2e
    return out, lse


class TiledCausalAttention(nn.Module):
    def __init__(self, dim: int = 64, num_heads: int = 4, block_m: int = 16, block_n: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.block_m, self.block_n = block_m, block_n
        self.sm_scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y, _ = flash_forward(q, k, v, self.sm_scale, self.block_m, self.block_n)
        return self.o(y.transpose(1, 2).reshape(b, n, c))
