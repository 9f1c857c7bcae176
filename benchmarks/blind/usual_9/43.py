import torch
from torch import nn


def blockwise_attention(q, k, v, q_chunk, k_chunk, causal, key_mask=None):
    """Exact attention in chunks of queries and keys (Rabe & Staats, 2021).

    q, k, v: (B, H, N, D), q already scaled. key_mask: (B, N) bool, True for valid keys.
    Blocks that lie entirely in the future are skipped. The running maximum starts at -inf; while a row has seen no
    valid key, 0 stands in for its maximum, which keeps exp(-inf - max) at 0. Rows without any valid key give 0.
    """
    B, H, N, D = q.shape
    outputs = []
    for qs in range(0, N, q_chunk):
        qe = min(qs + q_chunk, N)
        q_blk = q[:, :, qs:qe]
        q_idx = torch.arange(qs, qe, device=q.device)[:, None]

        m = q.new_full((B, H, qe - qs, 1), float("-inf"))
        l = q.new_zeros((B, H, qe - qs, 1))
        o = q.new_zeros((B, H, qe - qs, D))

        for ks in range(0, N, k_chunk):
            if causal and ks >= qe:
                break
            ke = min(ks + k_chunk, N)
            s = q_blk @ k[:, :, ks:ke].transpose(-1, -2)
            if causal:
                k_idx = torch.arange(ks, ke, device=q.device)[None, :]
                s = s.masked_fill(k_idx > q_idx, float("-inf"))
            if key_mask is not None:
                s = s.masked_fill(~key_mask[:, None, None, ks:ke], float("-inf"))

            m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
            m_ref = m_new.masked_fill(m_new == float("-inf"), 0.0)
            p = torch.exp(s - m_ref)
            alpha = torch.exp(m - m_ref)
            l = l * alpha + p.sum(dim=-1, keepdim=True)
            o = o * alpha + p @ v[:, :, ks:ke]
            m = m_new

        outputs.append(o / l.masked_fill(l == 0, 1.0))
    return torch.cat(outputs, dim=2)


class BlockwiseSelfAttention(nn.Module):
    def __init__(self, dim=256, num_heads=8, q_chunk=16, k_chunk=32, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_chunk = q_chunk
        self.k_chunk = k_chunk
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, key_mask=None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q = q * self.head_dim ** -0.5
        y = blockwise_attention(q, k, v, self.q_chunk, self.k_chunk, self.causal, key_mask)
        return self.out(y.transpose(1, 2).reshape(B, N, C))
