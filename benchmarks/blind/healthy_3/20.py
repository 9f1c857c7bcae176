"""Set Transformer (Lee et al., 2019) for sets of different sizes."""
import math

import torch
import torch.nn as nn


class MAB(nn.Module):
    """Multihead attention block. As in the reference code the residual is the projected query."""

    def __init__(self, dim_q, dim_kv, dim, num_heads):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_q, dim)
        self.fc_k = nn.Linear(dim_kv, dim)
        self.fc_v = nn.Linear(dim_kv, dim)
        self.fc_o = nn.Linear(dim, dim)
        self.ln0 = nn.LayerNorm(dim)
        self.ln1 = nn.LayerNorm(dim)

    def heads(self, x):
        b, n, d = x.shape
        return x.view(b, n, self.num_heads, d // self.num_heads).transpose(1, 2)

    def forward(self, q, kv, mask=None):
        """q (B, N, dim_q), kv (B, M, dim_kv), mask (B, M) True for elements of the set."""
        q = self.fc_q(q)
        qh, kh, vh = self.heads(q), self.heads(self.fc_k(kv)), self.heads(self.fc_v(kv))
        scores = qh @ kh.transpose(-2, -1) / math.sqrt(qh.size(-1))
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        att = torch.softmax(scores, dim=-1)
        o = q + (att @ vh).transpose(1, 2).flatten(2)
        o = self.ln0(o)
        o = o + torch.relu(self.fc_o(o))
        return self.ln1(o)


class ISAB(nn.Module):
    """Induced set attention: cost O(N * num_inds) instead of O(N * N)."""

    def __init__(self, dim_in, dim, num_heads, num_inds):
        super().__init__()
        self.inducing = nn.Parameter(torch.empty(1, num_inds, dim))
        nn.init.xavier_uniform_(self.inducing)
        self.mab0 = MAB(dim, dim_in, dim, num_heads)
        self.mab1 = MAB(dim_in, dim, dim, num_heads)

    def forward(self, x, mask=None):
        h = self.mab0(self.inducing.expand(x.size(0), -1, -1), x, mask)
        return self.mab1(x, h)  # all inducing points are valid: no mask here


class PMA(nn.Module):
    """Pooling by multihead attention with learned seeds."""

    def __init__(self, dim, num_heads, num_seeds):
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.seeds)
        self.ff = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.mab = MAB(dim, dim, dim, num_heads)

    def forward(self, x, mask=None):
        return self.mab(self.seeds.expand(x.size(0), -1, -1), self.ff(x), mask)


class SetTransformer(nn.Module):
    """Permutation invariant regression on padded sets.

    x: (B, N, dim_in); sizes: (B,) number of elements, None when all N belong to the set.
    Output: (B, num_outputs, dim_out). No position enters anywhere, this is intended.
    """

    def __init__(self, dim_in=3, dim_out=1, num_outputs=4, dim=64, num_heads=4, num_inds=16):
        super().__init__()
        self.enc1 = ISAB(dim_in, dim, num_heads, num_inds)
        self.enc2 = ISAB(dim, dim, num_heads, num_inds)
        self.pool = PMA(dim, num_heads, num_outputs)
        self.dec = MAB(dim, dim, dim, num_heads)
        self.out = nn.Linear(dim, dim_out)

    def forward(self, x, sizes=None):
        mask = None
        if sizes is not None:
            mask = torch.arange(x.size(1), device=x.device)[None, :] < sizes[:, None]
        h = self.enc2(self.enc1(x, mask), mask)
        s = self.pool(h, mask)
        return self.out(self.dec(s, s))
