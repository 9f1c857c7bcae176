import torch
import torch.nn as nn


class MSARowAttentionWithPairBias(nn.Module):
    """AlphaFold 2, Suppl. Algorithm 7.

    Args:
        c_m: MSA channels
        c_z: pair channels
        c_hidden: channels per head
        no_heads: number of heads

    Gates start fully open (zero weight, bias 1) and the query, key and value
    projections carry no bias, as in the original parameters.
    """

    def __init__(self, c_m=32, c_z=16, c_hidden=8, no_heads=4, inf=1e9):
        super().__init__()
        self.no_heads = no_heads
        self.c_hidden = c_hidden
        self.inf = inf
        inner = c_hidden * no_heads

        self.layer_norm_m = nn.LayerNorm(c_m)
        self.layer_norm_z = nn.LayerNorm(c_z)
        self.linear_z = nn.Linear(c_z, no_heads, bias=False)
        self.linear_q = nn.Linear(c_m, inner, bias=False)
        self.linear_k = nn.Linear(c_m, inner, bias=False)
        self.linear_v = nn.Linear(c_m, inner, bias=False)
        self.linear_g = nn.Linear(c_m, inner)
        self.linear_o = nn.Linear(inner, c_m)
        nn.init.zeros_(self.linear_g.weight)
        nn.init.ones_(self.linear_g.bias)

    def forward(self, m, z, mask=None):
        """
        m: [B, S, L, c_m], z: [B, L, L, c_z], mask: [B, S, L] (1 = residue, 0 = none)
        returns the update [B, S, L, c_m]
        """
        B, S, L, _ = m.shape
        if mask is None:
            mask = m.new_ones(B, S, L)
        m = self.layer_norm_m(m)

        # [B, S, 1, 1, L]
        mask_bias = (self.inf * (mask - 1))[:, :, None, None, :]
        # [B, 1, H, L, L]: the same bias for all sequences of the alignment
        pair_bias = self.linear_z(self.layer_norm_z(z)).permute(0, 3, 1, 2)[:, None]

        def heads(t):
            return t.view(B, S, L, self.no_heads, self.c_hidden)

        q = heads(self.linear_q(m)) * self.c_hidden ** -0.5
        k = heads(self.linear_k(m))
        v = heads(self.linear_v(m))

        a = torch.einsum("bsihc,bsjhc->bshij", q, k)
        a = a + mask_bias
        a = a + pair_bias
        a = torch.softmax(a, dim=-1)

        o = torch.einsum("bshij,bsjhc->bsihc", a, v)
        o = o * heads(torch.sigmoid(self.linear_g(m)))
        return self.linear_o(o.flatten(-2))
