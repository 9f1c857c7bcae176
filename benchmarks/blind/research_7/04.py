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
        self.ln0 = nn.LayerNorm(dim_v) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim_v) if ln else nn.Identity()
        self.fc_o = nn.Linear(dim_v, dim_v)

    def forward(self, Q, K, mask=None):
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)

        split = self.dim_v // self.num_heads
        Q_ = torch.cat(Q.split(split, 2), 0)
        K_ = torch.cat(K.split(split, 2), 0)
        V_ = torch.cat(V.split(split, 2), 0)

        E = Q_.bmm(K_.transpose(1, 2)) / math.sqrt(split)
        if mask is not None:
            m = mask.repeat_interleave(self.num_heads, dim=0).unsqueeze(1)
            E = E.masked_fill(~m, float("-inf"))
        A = torch.softmax(E, 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        O = self.ln0(O)
        O = O + F.relu(self.fc_o(O))
        return self.ln1(O)


class PMA(nn.Module):
    """Pooling by multihead attention with ``num_seeds`` learned seeds.

    ``mask`` is [B, N] bool, True for the members of the set.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_seeds: int = 1, ln: bool = False):
        super().__init__()
        self.S = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.S)
        self.mab = MAB(dim, dim, dim, num_heads, ln=ln)

    def forward(self, X, mask=None):
        return self.mab(self.S.expand(X.size(0), -1, -1), X, mask)
