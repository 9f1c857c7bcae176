import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SetPool(nn.Module):
    """Pooling by multihead attention.

    A few learned seeds attend to the elements of a set. Sets of different size are
    padded to a common length, ``mask`` is [B, N] with True for padded elements.
    """

    def __init__(self, dim=64, num_heads=4, num_seeds=2):
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.S = nn.Parameter(torch.Tensor(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.S)
        self.rff = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.fc_q = nn.Linear(dim, dim)
        self.fc_k = nn.Linear(dim, dim)
        self.fc_v = nn.Linear(dim, dim)
        self.fc_o = nn.Linear(dim, dim)
        self.ln0 = nn.LayerNorm(dim)
        self.ln1 = nn.LayerNorm(dim)

    def forward(self, X, mask=None):
        B = X.size(0)
        X = self.rff(X)
        Q = self.fc_q(self.S.repeat(B, 1, 1))
        K, V = self.fc_k(X), self.fc_v(X)

        dim_split = self.dim // self.num_heads
        Q_ = torch.cat(Q.split(dim_split, 2), 0)
        K_ = torch.cat(K.split(dim_split, 2), 0)
        V_ = torch.cat(V.split(dim_split, 2), 0)

        E = Q_.bmm(K_.transpose(1, 2)) / math.sqrt(dim_split)
        if mask is not None:
            mask_ = mask.repeat_interleave(self.num_heads, dim=0).unsqueeze(1)
            E = E.masked_fill(mask_, -1e9)
        A = torch.softmax(E, 2)

        O = torch.cat((Q_ + A.bmm(V_)).split(B, 0), 2)
        O = self.ln0(O)
        O = self.ln1(O + F.relu(self.fc_o(O)))
        return O
