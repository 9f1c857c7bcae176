import math

import torch
from torch import nn


def exists(val):
    return val is not None


class MemoryEfficientAttention(nn.Module):
    """Attention over key/value chunks with a running max and a running normaliser.

    Numerically the same as ordinary softmax attention, with the score matrix never larger
    than ``q_bucket_size x k_bucket_size``.

    mask: (b, j) bool over keys, True = attend. A query with no key to attend gets zeros
    (before the output projection).
    """

    def __init__(self, dim=128, heads=4, dim_head=32, causal=False, q_bucket_size=64, k_bucket_size=64):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.causal = causal
        self.scale = 1 / math.sqrt(dim_head)
        self.q_bucket_size = q_bucket_size
        self.k_bucket_size = k_bucket_size
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def attend_chunk(self, q, k, v, mask, q_start):
        b, h, i, d = q.shape
        acc = q.new_zeros(b, h, i, d)
        row_sum = q.new_zeros(b, h, i, 1)
        row_max = q.new_full((b, h, i, 1), -float('inf'))

        for k_start in range(0, k.shape[2], self.k_bucket_size):
            if self.causal and k_start > q_start + i - 1:
                break  # this and all later chunks lie in the future
            kc = k[:, :, k_start:k_start + self.k_bucket_size]
            vc = v[:, :, k_start:k_start + self.k_bucket_size]
            j = kc.shape[2]
            sim = torch.einsum('bhid,bhjd->bhij', q, kc)

            if exists(mask):
                mc = mask[:, None, None, k_start:k_start + j]
                sim = sim.masked_fill(~mc, -float('inf'))
            if self.causal:
                q_pos = torch.arange(q_start, q_start + i, device=q.device)
                k_pos = torch.arange(k_start, k_start + j, device=q.device)
                sim = sim.masked_fill(k_pos[None, :] > q_pos[:, None], -float('inf'))

            new_max = torch.maximum(row_max, sim.amax(dim=-1, keepdim=True))
            # nothing seen so far: any finite reference keeps exp(-inf - ref) at zero
            ref = new_max.masked_fill(new_max == -float('inf'), 0.).detach()
            p = torch.exp(sim - ref)
            correction = torch.exp(row_max.detach() - ref)

            row_sum = row_sum * correction + p.sum(dim=-1, keepdim=True)
            acc = acc * correction + torch.einsum('bhij,bhjd->bhid', p, vc)
            row_max = new_max

        empty = row_sum == 0
        return acc / row_sum.masked_fill(empty, 1.)

    def forward(self, x, context=None, mask=None):
        assert not (self.causal and exists(context)), 'causal is for self attention'
        context = x if context is None else context
        b, n, _ = x.shape

        q = self.to_q(x) * self.scale
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, t.shape[1], self.heads, -1).transpose(1, 2) for t in (q, k, v))

        outs = []
        for q_start in range(0, n, self.q_bucket_size):
            qc = q[:, :, q_start:q_start + self.q_bucket_size]
            outs.append(self.attend_chunk(qc, k, v, mask, q_start))

        out = torch.cat(outs, dim=2).transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
