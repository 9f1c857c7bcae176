from typing import Optional

import torch
import torch.nn as nn


class MSAColumnAttention(nn.Module):
    """Gated column-wise attention over an MSA (AlphaFold 2, Algorithm 8).

    The sequences at one residue position attend to one another. There is no pair bias here, unlike in the row-wise
    module.

    Args:
        c_m: channels of the MSA representation.
        c_hidden: channels per head; ``c_hidden * no_heads`` need not equal ``c_m``.
        no_heads: number of heads.
        inf: magnitude of the mask term.
    """

    def __init__(self, c_m: int = 64, c_hidden: int = 8, no_heads: int = 4, inf: float = 1e9):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.inf = inf
        hd = c_hidden * no_heads
        self.layer_norm_m = nn.LayerNorm(c_m)
        self.linear_q = nn.Linear(c_m, hd, bias=False)
        self.linear_k = nn.Linear(c_m, hd, bias=False)
        self.linear_v = nn.Linear(c_m, hd, bias=False)
        self.linear_g = nn.Linear(c_m, hd)
        self.linear_o = nn.Linear(hd, c_m)
        nn.init.ones_(self.linear_g.bias)

    def forward(self, m: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Args:
            m: [B, N_seq, N_res, c_m].
            mask: [B, N_seq, N_res], 1 where the MSA has an entry and 0 for padding.

        Returns:
            the update, [B, N_seq, N_res, c_m]. The caller adds the residual.
        """
        if mask is None:
            mask = m.new_ones(m.shape[:-1])
        m = m.transpose(-2, -3)
        bias = (self.inf * (mask.transpose(-1, -2).to(m.dtype) - 1))[..., None, None, :]

        m = self.layer_norm_m(m)
        q, k, v, g = (f(m) for f in (self.linear_q, self.linear_k, self.linear_v, self.linear_g))
        q, k, v = (t.view(t.shape[:-1] + (self.no_heads, -1)) for t in (q, k, v))
        q = q * self.c_hidden**-0.5

        a = torch.einsum("...qhc,...khc->...hqk", q, k) + bias
        a = torch.softmax(a, dim=-1)
        o = torch.einsum("...hqk,...khc->...qhc", a, v).flatten(-2)
        o = self.linear_o(torch.sigmoid(g) * o)
        return o.transpose(-2, -3)
