import torch
from torch import nn


class StrictlyCausalAttention(nn.Module):
    """Every position reads only from positions strictly before it, never from itself.

    A learned null key/value is put in front of the sequence, so that position 0 has something to
    attend to. Column 0 of the mask is the null slot, column j + 1 is token j.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.null_kv = nn.Parameter(torch.randn(2, num_heads, 1, self.head_dim) * 0.02)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q = self.to_q(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.to_kv(x).view(b, t, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        null_k, null_v = self.null_kv.unsqueeze(1).expand(-1, b, -1, -1, -1)
        k = torch.cat([null_k, k], dim=2)
        v = torch.cat([null_v, v], dim=2)

        sim = q @ k.transpose(-1, -2) * self.head_dim ** -0.5
        visible = torch.ones(t, t + 1, dtype=torch.bool, device=x.device).tril()
        sim = sim.masked_fill(~visible, float("-inf"))
        out = sim.softmax(dim=-1) @ v
        return self.to_out(out.transpose(1, 2).reshape(b, t, c))
