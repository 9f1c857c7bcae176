import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    """Multihead attention block of the Set Transformer.

    As in the reference implementation the logits are divided by sqrt(dim_V), the
    full width and not the width of a head, and the skip connection starts at the
    projected query, which is why there is no separate output projection.
    """

    def __init__(self, dim_Q, dim_K, dim_V, num_heads, ln=True):
        super().__init__()
        self.dim_V = dim_V
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_Q, dim_V)
        self.fc_k = nn.Linear(dim_K, dim_V)
        self.fc_v = nn.Linear(dim_K, dim_V)
        self.fc_o = nn.Linear(dim_V, dim_V)
        self.ln0 = nn.LayerNorm(dim_V) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim_V) if ln else nn.Identity()

    def forward(self, Q, K, pad: Optional[torch.Tensor] = None):
        B, n, _ = Q.shape
        m = K.size(1)
        Q, K, V = self.fc_q(Q), self.fc_k(K), self.fc_v(K)
        q = Q.view(B, n, self.num_heads, -1).transpose(1, 2)
        k = K.view(B, m, self.num_heads, -1).transpose(1, 2)
        v = V.view(B, m, self.num_heads, -1).transpose(1, 2)

        logits = q @ k.mT / math.sqrt(self.dim_V)
        if pad is not None:
            logits = logits.masked_fill(pad[:, None, None, :], torch.finfo(logits.dtype).min)
        A = torch.softmax(logits, dim=-1)

        O = Q + (A @ v).transpose(1, 2).reshape(B, n, self.dim_V)
        O = self.ln0(O)
        O = O + F.relu(self.fc_o(O))
        return self.ln1(O)


class ISAB(nn.Module):
    """Induced set attention. ``pad`` [B, N] is True for elements that do not exist;
    their outputs are meaningless and have to be ignored by the caller."""

    def __init__(self, dim_in=32, dim_out=64, num_heads=4, num_inds=16, ln=True):
        super().__init__()
        self.inducing = nn.Parameter(torch.empty(1, num_inds, dim_out))
        nn.init.xavier_uniform_(self.inducing)
        self.gather = MAB(dim_out, dim_in, dim_out, num_heads, ln=ln)
        self.scatter = MAB(dim_in, dim_out, dim_out, num_heads, ln=ln)

    def forward(self, X, pad: Optional[torch.Tensor] = None):
        summary = self.gather(self.inducing.expand(X.size(0), -1, -1), X, pad)
        # the induced points are never padding
        return self.scatter(X, summary)
