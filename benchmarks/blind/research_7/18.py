import torch
import torch.nn as nn
import torch.nn.functional as F


class GatedAttention(nn.Module):
    def __init__(self, c_in, c_hidden, no_heads):
        super().__init__()
        self.no_heads = no_heads
        self.c_hidden = c_hidden
        self.linear_q = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_g = nn.Linear(c_in, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_in)

    def forward(self, x, bias):
        def heads(t):
            return t.unflatten(-1, (self.no_heads, self.c_hidden)).transpose(-2, -3)

        q, k, v = heads(self.linear_q(x)), heads(self.linear_k(x)), heads(self.linear_v(x))
        a = q * self.c_hidden ** -0.5 @ k.transpose(-1, -2) + bias
        o = (F.softmax(a, dim=-1) @ v).transpose(-2, -3)
        g = self.linear_g(x).sigmoid().unflatten(-1, (self.no_heads, self.c_hidden))
        return self.linear_o((o * g).flatten(-2))


class MSAColumnAttention(nn.Module):
    """Attention along the sequences of an alignment, separately for every residue.

    m:        [B, S, L, c_m]   S sequences, L residues
    msa_mask: [B, S, L]        1 where the alignment has a residue
    """

    def __init__(self, c_m: int = 32, c_hidden: int = 8, no_heads: int = 4, inf: float = 1e9):
        super().__init__()
        self.inf = inf
        self.layer_norm = nn.LayerNorm(c_m)
        self.mha = GatedAttention(c_m, c_hidden, no_heads)

    def forward(self, m, msa_mask=None):
        B, S, L, C = m.shape
        if msa_mask is None:
            msa_mask = m.new_ones(B, S, L)

        cols = self.layer_norm(m).transpose(1, 2).reshape(B * L, S, C)
        bias = self.inf * (msa_mask.reshape(B * L, 1, 1, S) - 1)

        update = self.mha(cols, bias)
        update = update.reshape(B, L, S, C).transpose(1, 2)
        return m + update
