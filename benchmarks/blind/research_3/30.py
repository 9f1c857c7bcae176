import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    def __init__(self, dim_Q, dim_K, dim_V, num_heads, ln=False):
        super().__init__()
        self.dim_V = dim_V
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_Q, dim_V)
        self.fc_k = nn.Linear(dim_K, dim_V)
        self.fc_v = nn.Linear(dim_K, dim_V)
        if ln:
            self.ln0 = nn.LayerNorm(dim_V)
            self.ln1 = nn.LayerNorm(dim_V)
        self.fc_o = nn.Linear(dim_V, dim_V)

    def forward(self, Q, K, mask=None):
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)

        dim_split = self.dim_V // self.num_heads
        Q_ = torch.cat(Q.split(dim_split, 2), 0)
        K_ = torch.cat(K.split(dim_split, 2), 0)
        V_ = torch.cat(V.split(dim_split, 2), 0)

        # sqrt(dim_V), not sqrt(dim_V / num_heads): as in the released code
        A = Q_.bmm(K_.transpose(1, 2)) / math.sqrt(self.dim_V)
        if mask is not None:
            A = A.masked_fill(~mask.repeat(self.num_heads, 1).unsqueeze(1), -1e9)
        A = torch.softmax(A, 2)

        # the residual is the projected query, head by head; the heads are mixed in fc_o
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        O = O if getattr(self, 'ln0', None) is None else self.ln0(O)
        O = O + F.relu(self.fc_o(O))
        O = O if getattr(self, 'ln1', None) is None else self.ln1(O)
        return O


class ISAB(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, num_inds, ln=False):
        super().__init__()
        self.I = nn.Parameter(torch.Tensor(1, num_inds, dim_out))
        nn.init.xavier_uniform_(self.I)
        self.mab0 = MAB(dim_out, dim_in, dim_out, num_heads, ln=ln)
        self.mab1 = MAB(dim_in, dim_out, dim_out, num_heads, ln=ln)

    def forward(self, X, mask=None):
        H = self.mab0(self.I.repeat(X.size(0), 1, 1), X, mask)
        return self.mab1(X, H)


class SetTransformer(nn.Module):
    """Set in, ``num_outputs`` vectors out. mask: bool [B, n], True for members of the set."""

    def __init__(self, dim_input=3, num_outputs=2, dim_output=8, num_inds=8, dim_hidden=32,
                 num_heads=4, ln=True):
        super().__init__()
        self.enc0 = ISAB(dim_input, dim_hidden, num_heads, num_inds, ln=ln)
        self.enc1 = ISAB(dim_hidden, dim_hidden, num_heads, num_inds, ln=ln)
        self.S = nn.Parameter(torch.Tensor(1, num_outputs, dim_hidden))
        nn.init.xavier_uniform_(self.S)
        self.pma = MAB(dim_hidden, dim_hidden, dim_hidden, num_heads, ln=ln)
        self.sab = MAB(dim_hidden, dim_hidden, dim_hidden, num_heads, ln=ln)
        self.head = nn.Linear(dim_hidden, dim_output)

    def forward(self, X, mask=None):
        X = self.enc1(self.enc0(X, mask), mask)
        P = self.pma(self.S.repeat(X.size(0), 1, 1), X, mask)
        return self.head(self.sab(P, P))
