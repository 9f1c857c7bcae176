import torch
import torch.nn as nn


def blockwise_attention(q, k, v, block_size, causal):
    """Exact attention with memory linear in the number of keys.

    q, k, v: (batch, heads, length, head_dim). Goes over the keys in blocks and keeps the running
    row maximum, the running denominator and the running numerator.
    """
    n, s = q.shape[2], k.shape[2]
    q = q * q.shape[-1] ** -0.5
    q_pos = torch.arange(n, device=q.device) + (s - n)

    row_max = q.new_full((*q.shape[:-1], 1), float("-inf"))
    denom = q.new_zeros((*q.shape[:-1], 1))
    numer = torch.zeros_like(q)

    for start in range(0, s, block_size):
        kb = k[:, :, start:start + block_size]
        vb = v[:, :, start:start + block_size]
        logits = q @ kb.transpose(-1, -2)
        if causal:
            k_pos = torch.arange(start, start + kb.shape[2], device=q.device)
            logits = logits.masked_fill(k_pos[None, :] > q_pos[:, None], float("-inf"))

        new_max = torch.maximum(row_max, logits.amax(dim=-1, keepdim=True))
        weights = torch.exp(logits - new_max)
        correction = torch.exp(row_max - new_max)

        numer = numer * correction + weights @ vb
        denom = denom + weights.sum(dim=-1, keepdim=True)
        row_max = new_max

    return numer / denom


class BlockwiseSelfAttention(nn.Module):
    def __init__(self, dim=64, num_heads=4, block_size=16, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.block_size = block_size
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (
            t.view(b, n, self.num_heads, d // self.num_heads).transpose(1, 2)
            for t in self.qkv(x).split(d, dim=-1)
        )
        y = blockwise_attention(q, k, v, self.block_size, self.causal)
        return self.out(y.transpose(1, 2).reshape(b, n, d))
