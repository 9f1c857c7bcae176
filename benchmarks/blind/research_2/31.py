import torch
import torch.nn as nn


class PairGatedAttention(nn.Module):
    def __init__(self, c_in, c_hidden, no_heads):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.linear_q = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_g = nn.Linear(c_in, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_in)

    def _heads(self, t):
        return t.view(*t.shape[:-1], self.no_heads, self.c_hidden).transpose(-2, -3)

    def forward(self, x, biases):
        q = self._heads(self.linear_q(x)) * self.c_hidden ** -0.5
        k = self._heads(self.linear_k(x))
        v = self._heads(self.linear_v(x))
        a = torch.matmul(q, k.transpose(-1, -2))
        for b in biases:
            a = a + b
        a = torch.softmax(a, dim=-1)
        o = torch.matmul(a, v).transpose(-2, -3)
        o = o.flatten(-2) * torch.sigmoid(self.linear_g(x))
        return self.linear_o(o)


class TriangleAttention(nn.Module):
    """Triangle self-attention of the pair stack (AlphaFold 2, Algorithms 13 and 14).

    Args:
        c_in: channels of the pair representation
        starting: around the starting node (rows) or, if False, around the ending node (columns)

    forward(x, mask): x is [*, I, J, C_in], mask [*, I, J] with 1 for existing residue pairs; returns the update
    for x, to be added by the caller.
    """

    def __init__(self, c_in=32, c_hidden=8, no_heads=4, starting=False, inf=1e9):
        super().__init__()
        self.starting = starting
        self.inf = inf
        self.layer_norm = nn.LayerNorm(c_in)
        self.linear = nn.Linear(c_in, no_heads, bias=False)
        self.mha = PairGatedAttention(c_in, c_hidden, no_heads)

    def forward(self, x, mask=None):
        if mask is None:
            mask = x.new_ones(x.shape[:-1])

        if not self.starting:
            x = x.transpose(-2, -3)
            mask = mask.transpose(-1, -2)

        # [*, I, J, C_in]
        x = self.layer_norm(x)

        # [*, I, 1, 1, J]
        mask_bias = (self.inf * (mask - 1))[..., :, None, None, :]

        # [*, H, I, J]
        triangle_bias = self.linear(x).movedim(-1, -3)

        # [*, 1, H, I, J]
        triangle_bias = triangle_bias.unsqueeze(-4)

        x = self.mha(x, biases=[mask_bias, triangle_bias])
        return x
