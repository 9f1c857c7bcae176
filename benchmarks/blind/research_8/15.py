import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    def __init__(self, dim_q, dim_k, dim_v, num_heads, ln=False):
        super().__init__()
        self.dim_v = dim_v
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_q, dim_v)
        self.fc_k = nn.Linear(dim_k, dim_v)
        self.fc_v = nn.Linear(dim_k, dim_v)
        self.fc_o = nn.Linear(dim_v, dim_v)
        self.ln0 = nn.LayerNorm(dim_v) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim_v) if ln else nn.Identity()

    def forward(self, q_in, k_in):
        b = q_in.size(0)
        d = self.dim_v // self.num_heads
        q, k, v = self.fc_q(q_in), self.fc_k(k_in), self.fc_v(k_in)
        q_ = q.view(b * self.num_heads, -1, d)
        k_ = k.view(b * self.num_heads, -1, d)
        v_ = v.view(b * self.num_heads, -1, d)
        a = torch.softmax(q_.bmm(k_.transpose(1, 2)) / math.sqrt(d), dim=-1)
        o = q + a.bmm(v_).view(b, -1, self.dim_v)
        o = self.ln0(o)
        o = o + F.relu(self.fc_o(o))
        return self.ln1(o)


class ISAB(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, num_inds, ln=False):
        super().__init__()
        self.inducing = nn.Parameter(torch.empty(1, num_inds, dim_out))
        nn.init.xavier_uniform_(self.inducing)
        self.mab0 = MAB(dim_out, dim_in, dim_out, num_heads, ln)
        self.mab1 = MAB(dim_in, dim_out, dim_out, num_heads, ln)

    def forward(self, x):
        h = self.mab0(self.inducing.repeat(x.size(0), 1, 1), x)
        return self.mab1(x, h)


class PMA(nn.Module):
    def __init__(self, dim, num_heads, num_seeds, ln=False):
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.seeds)
        self.mab = MAB(dim, dim, dim, num_heads, ln)

    def forward(self, x):
        return self.mab(self.seeds.repeat(x.size(0), 1, 1), x)


class SetTransformer(nn.Module):
    """Permutation-invariant regression on sets, [B, N, dim_input] -> [B, num_outputs, dim_output]."""

    def __init__(self, dim_input=3, num_outputs=1, dim_output=4, num_inds=16, dim_hidden=64, num_heads=4, ln=True):
        super().__init__()
        self.enc = nn.Sequential(
            ISAB(dim_input, dim_hidden, num_heads, num_inds, ln=ln),
            ISAB(dim_hidden, dim_hidden, num_heads, num_inds, ln=ln),
        )
        self.dec = nn.Sequential(PMA(dim_hidden, num_heads, num_outputs, ln=ln), nn.Linear(dim_hidden, dim_output))

    def forward(self, x):
        return self.dec(self.enc(x))
