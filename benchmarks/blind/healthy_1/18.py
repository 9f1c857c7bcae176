import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    """Multihead attention block of the Set Transformer.

    ``O = LN(Q W_q + Att(Q, K)); O = LN(O + relu(O W_o))``. Heads live in the batch axis. The residual
    starts from the *projected* query because the input width may differ.
    """

    def __init__(self, dim_Q, dim_K, dim_V, num_heads, ln=False):
        super().__init__()
        assert dim_V % num_heads == 0
        self.dim_V = dim_V
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_Q, dim_V)
        self.fc_k = nn.Linear(dim_K, dim_V)
        self.fc_v = nn.Linear(dim_K, dim_V)
        self.ln0 = nn.LayerNorm(dim_V) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim_V) if ln else nn.Identity()
        self.fc_o = nn.Linear(dim_V, dim_V)

    def forward(self, Q, K, key_mask=None):
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)

        dim_split = self.dim_V // self.num_heads
        Q_ = torch.cat(Q.split(dim_split, 2), 0)
        K_ = torch.cat(K.split(dim_split, 2), 0)
        V_ = torch.cat(V.split(dim_split, 2), 0)

        logits = Q_.bmm(K_.transpose(1, 2)) / math.sqrt(dim_split)
        if key_mask is not None:
            # heads are the outer part of the batch axis here, hence repeat and not repeat_interleave
            logits = logits.masked_fill(~key_mask.repeat(self.num_heads, 1).unsqueeze(1), float("-inf"))
        A = torch.softmax(logits, 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        O = self.ln0(O)
        return self.ln1(O + F.relu(self.fc_o(O)))


class ISAB(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, num_inds, ln=False):
        super().__init__()
        self.I = nn.Parameter(torch.empty(1, num_inds, dim_out))
        nn.init.xavier_uniform_(self.I)
        self.mab0 = MAB(dim_out, dim_in, dim_out, num_heads, ln=ln)
        self.mab1 = MAB(dim_in, dim_out, dim_out, num_heads, ln=ln)

    def forward(self, X, mask=None):
        H = self.mab0(self.I.repeat(X.size(0), 1, 1), X, mask)
        return self.mab1(X, H)


class PMA(nn.Module):
    def __init__(self, dim, num_heads, num_seeds, ln=False):
        super().__init__()
        self.S = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.S)
        self.mab = MAB(dim, dim, dim, num_heads, ln=ln)

    def forward(self, X, mask=None):
        return self.mab(self.S.repeat(X.size(0), 1, 1), X, mask)


class SetTransformer(nn.Module):
    """``(B, N, dim_input)`` -> ``(B, num_outputs, dim_output)``, invariant to the order of the N elements.

    ``mask``: bool ``(B, N)``, True for elements that belong to the set; sets are not empty.
    """

    def __init__(self, dim_input=3, num_outputs=1, dim_output=10, num_inds=8, dim_hidden=64, num_heads=4, ln=True):
        super().__init__()
        self.isab1 = ISAB(dim_input, dim_hidden, num_heads, num_inds, ln=ln)
        self.isab2 = ISAB(dim_hidden, dim_hidden, num_heads, num_inds, ln=ln)
        self.pma = PMA(dim_hidden, num_heads, num_outputs, ln=ln)
        self.sab = MAB(dim_hidden, dim_hidden, dim_hidden, num_heads, ln=ln)
        self.head = nn.Linear(dim_hidden, dim_output)

    def forward(self, X, mask=None):
        X = self.isab2(self.isab1(X, mask), mask)
        X = self.pma(X, mask)
        return self.head(self.sab(X, X))
