"""The blockwise kernel multiplies its scale by log2(e) again in every iteration over the keys.

flagos-ai/FlagGems #424 (2025)
https://github.com/flagos-ai/FlagGems/pull/424
"""
import torch
import torch.nn as nn


def _build(rev):
    def attn_fwd(q, k, v, sm_scale, BLOCK_N=4):
        acc = torch.zeros_like(q)
        m_i = torch.full(q.shape[:-1], float("-inf"), dtype=q.dtype, device=q.device)
        l_i = torch.zeros_like(m_i)
        qk_scale = sm_scale
        if rev == 2:
            qk_scale = qk_scale * 1.44269504
        for start_n in range(0, k.shape[-2], BLOCK_N):
            kb, vb = k[..., start_n:start_n + BLOCK_N, :], v[..., start_n:start_n + BLOCK_N, :]
            if rev == 1:
                qk_scale = qk_scale * 1.44269504
            qk = q @ kb.transpose(-2, -1) * qk_scale
            m_ij = torch.maximum(m_i, qk.amax(-1))
            p = torch.exp2(qk - m_ij[..., None])
            alpha = torch.exp2(m_i - m_ij)
            l_i = l_i * alpha + p.sum(-1)
            acc = acc * alpha[..., None] + p @ vb
            m_i = m_ij
        return acc / l_i[..., None]

    class FlashSelfAttention(nn.Module):
        """softmax(q k^T / sqrt(head_dim)) v over all tokens, computed block by block; forward(x), x (B, T, C)."""

        def __init__(self, dim=32, num_heads=4):
            super().__init__()
            self.num_heads = num_heads
            self.qkv = nn.Linear(dim, 3 * dim)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            y = attn_fwd(q, k, v, q.shape[-1] ** -0.5)
            return self.proj(y.transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return FlashSelfAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
