import torch
import torch.nn as nn


class MSARowAttentionWithPairBias(nn.Module):
    """
    Gated self-attention along the rows of a multiple sequence alignment, biased by the pair
    representation (Algorithm 7 of the AlphaFold 2 supplement).

    Args:
        m: [batch, n_seq, n_res, c_m] MSA representation
        z: [batch, n_res, n_res, c_z] pair representation
        mask: [batch, n_seq, n_res], 1 for valid positions
    Returns:
        [batch, n_seq, n_res, c_m] update of the MSA representation
    """

    def __init__(self, c_m: int = 32, c_z: int = 16, c_hidden: int = 8, no_heads: int = 4,
                 dropout: float = 0.15, inf: float = 1e9):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.inf = inf

        self.layer_norm_m = nn.LayerNorm(c_m)
        self.layer_norm_z = nn.LayerNorm(c_z)
        self.linear_z = nn.Linear(c_z, no_heads, bias=False)
        self.linear_q = nn.Linear(c_m, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_m, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_m, c_hidden * no_heads, bias=False)
        self.linear_g = nn.Linear(c_m, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_m)
        self.dropout = nn.Dropout(dropout)

    def forward(self, m, z, mask=None):
        if mask is None:
            mask = m.new_ones(m.shape[:-1])
        m = self.layer_norm_m(m)

        # [batch, n_seq, 1, 1, n_res]
        mask_bias = (self.inf * (mask.to(m.dtype) - 1))[:, :, None, None, :]
        # [batch, 1, heads, n_res, n_res]
        pair_bias = self.linear_z(self.layer_norm_z(z)).permute(0, 3, 1, 2).unsqueeze(1)

        def heads(t):
            return t.view(*t.shape[:-1], self.no_heads, self.c_hidden).transpose(-2, -3)

        q = heads(self.linear_q(m)) * self.c_hidden ** -0.5
        k = heads(self.linear_k(m))
        v = heads(self.linear_v(m))

        logits = torch.matmul(q, k.transpose(-1, -2)) + pair_bias
        logits = self.dropout(logits)
        a = torch.softmax(logits + mask_bias, dim=-1)
        o = torch.matmul(a, v).transpose(-2, -3)

        g = torch.sigmoid(self.linear_g(m)).view(*o.shape)
        o = (o * g).flatten(-2)
        return self.linear_o(o)
