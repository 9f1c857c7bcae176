import torch
import torch.nn as nn


class MSAColumnAttention(nn.Module):
    """Gated column-wise self-attention (each residue position attends over the sequences).

    msa: [B, S, R, C], mask: [B, S, R] with 1 at real entries.
    """

    def __init__(self, dim=64, num_heads=8, inf=1e9):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.inf = inf
        self.layer_norm = nn.LayerNorm(dim)
        self.linear_q = nn.Linear(dim, dim, bias=False)
        self.linear_k = nn.Linear(dim, dim, bias=False)
        self.linear_v = nn.Linear(dim, dim, bias=False)
        self.linear_g = nn.Linear(dim, dim)
        self.linear_o = nn.Linear(dim, dim)

    def forward(self, msa, mask=None):
        B, S, R, C = msa.shape
        m = self.layer_norm(msa).transpose(1, 2)
        if mask is None:
            mask = msa.new_ones(B, S, R)
        bias = self.inf * (mask.transpose(1, 2) - 1)[:, :, None, None, :]

        split = (B, R, S, self.num_heads, self.head_dim)
        q = self.linear_q(m).view(split).transpose(2, 3)
        k = self.linear_k(m).view(split).transpose(2, 3)
        v = self.linear_v(m).view(split).transpose(2, 3)
        g = torch.sigmoid(self.linear_g(m))

        q = q * self.head_dim ** 0.5
        a = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) + bias, dim=-1)
        o = torch.matmul(a, v).transpose(2, 3).reshape(B, R, S, C)
        o = self.linear_o(g * o)
        return msa + o.transpose(1, 2)
