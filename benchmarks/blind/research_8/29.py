import torch
import torch.nn as nn


class TriangleAttention(nn.Module):
    """Gated triangle self-attention around the starting or the ending node (AlphaFold 2, algorithms 13 and 14).

    z: [B, N, N, C]; mask: [B, N, N] with 1 at valid pairs. The residual is added by the caller. For the
    ending node the pair tensor is transposed on the way in and on the way out.
    """

    def __init__(self, c_z=32, c_hidden=8, heads=4, starting=True, inf=1e9):
        super().__init__()
        self.heads, self.c_hidden = heads, c_hidden
        self.starting = starting
        self.inf = inf
        self.norm = nn.LayerNorm(c_z)
        self.to_bias = nn.Linear(c_z, heads, bias=False)
        self.to_q = nn.Linear(c_z, heads * c_hidden, bias=False)
        self.to_k = nn.Linear(c_z, heads * c_hidden, bias=False)
        self.to_v = nn.Linear(c_z, heads * c_hidden, bias=False)
        self.to_g = nn.Linear(c_z, heads * c_hidden)
        self.to_o = nn.Linear(heads * c_hidden, c_z)

    def forward(self, z, mask=None):
        if mask is None:
            mask = z.new_ones(z.shape[:-1])
        if not self.starting:
            z, mask = z.transpose(1, 2), mask.transpose(1, 2)
        z = self.norm(z)

        def heads(t):
            return t.unflatten(-1, (self.heads, self.c_hidden)).transpose(-2, -3)

        q = heads(self.to_q(z)) * self.c_hidden ** -0.5
        k, v = heads(self.to_k(z)), heads(self.to_v(z))
        tri = self.to_bias(z).permute(0, 3, 1, 2).unsqueeze(1)
        pad = (self.inf * (mask - 1))[:, :, None, None, :]

        a = torch.softmax(q @ k.transpose(-1, -2) + tri + pad, dim=-1)
        o = (a @ v).transpose(-2, -3).flatten(-2)
        o = self.to_o(torch.sigmoid(self.to_g(z)) * o)
        return o if self.starting else o.transpose(1, 2)
