import math

import torch
import torch.nn as nn


class MAB(nn.Module):
    """Multihead attention block of the Set Transformer: queries X attend to Y."""

    def __init__(self, dim_q, dim_k, dim_v, num_heads, ln=True):
        super().__init__()
        assert dim_v % num_heads == 0
        self.dim_v = dim_v
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_q, dim_v)
        self.fc_k = nn.Linear(dim_k, dim_v)
        self.fc_v = nn.Linear(dim_k, dim_v)
        self.fc_o = nn.Linear(dim_v, dim_v)
        self.ln0 = nn.LayerNorm(dim_v) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim_v) if ln else nn.Identity()

    def forward(self, X, Y, mask=None):
        """mask: (B, |Y|) bool, True on the real elements of Y."""
        Q, K, V = self.fc_q(X), self.fc_k(Y), self.fc_v(Y)
        ds = self.dim_v // self.num_heads
        # heads are stacked on the batch axis: (H * B, n, ds)
        Q_, K_, V_ = (torch.cat(t.split(ds, dim=2), dim=0) for t in (Q, K, V))
        A = Q_.bmm(K_.transpose(1, 2)) / math.sqrt(ds)
        if mask is not None:
            # repeat (not repeat_interleave): the head index varies slowest
            A = A.masked_fill(~mask.repeat(self.num_heads, 1).unsqueeze(1), torch.finfo(A.dtype).min)
        A = torch.softmax(A, dim=2)
        O = torch.cat(A.bmm(V_).split(X.size(0), dim=0), dim=2)
        O = self.ln0(Q + O)
        return self.ln1(O + torch.relu(self.fc_o(O)))


class ISAB(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, num_inds, ln=True):
        super().__init__()
        self.inducing = nn.Parameter(torch.empty(1, num_inds, dim_out))
        nn.init.xavier_uniform_(self.inducing)
        self.mab0 = MAB(dim_out, dim_in, dim_out, num_heads, ln)
        self.mab1 = MAB(dim_in, dim_out, dim_out, num_heads, ln)

    def forward(self, X, mask=None):
        H = self.mab0(self.inducing.expand(X.size(0), -1, -1), X, mask)
        return self.mab1(X, H)


class PMA(nn.Module):
    def __init__(self, dim, num_heads, num_seeds, ln=True):
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.seeds)
        self.mab = MAB(dim, dim, dim, num_heads, ln)

    def forward(self, X, mask=None):
        return self.mab(self.seeds.expand(X.size(0), -1, -1), X, mask)


class SetTransformer(nn.Module):
    """Permutation invariant map from a set of vectors to ``num_outputs`` vectors."""

    def __init__(self, dim_input=3, num_outputs=1, dim_output=10, num_inds=16, dim_hidden=64,
                 num_heads=4, ln=True):
        super().__init__()
        self.enc1 = ISAB(dim_input, dim_hidden, num_heads, num_inds, ln)
        self.enc2 = ISAB(dim_hidden, dim_hidden, num_heads, num_inds, ln)
        self.pool = PMA(dim_hidden, num_heads, num_outputs, ln)
        self.sab = MAB(dim_hidden, dim_hidden, dim_hidden, num_heads, ln)
        self.out = nn.Linear(dim_hidden, dim_output)

    def forward(self, X, mask=None):
        h = self.enc2(self.enc1(X, mask), mask)
        z = self.pool(h, mask)
        z = self.sab(z, z)
        return self.out(z)
