import torch
import torch.nn as nn


class GRUGate(nn.Module):
    def __init__(self, dim, bias=2.0):
        super().__init__()
        self.w = nn.Linear(dim, 3 * dim, bias=False)
        self.u = nn.Linear(dim, 2 * dim, bias=False)
        self.ug = nn.Linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.full((dim,), bias))

    def forward(self, x, y):
        wr, wz, wg = self.w(y).chunk(3, dim=-1)
        ur, uz = self.u(x).chunk(2, dim=-1)
        r = torch.sigmoid(wr + ur)
        z = torch.sigmoid(wz + uz - self.bias)
        g = torch.tanh(wg + self.ug(r * x))
        return (1 - z) * x + z * g


class GTrXLLayer(nn.Module):
    """Gated Transformer-XL layer for agents that act under partial observability.

    ``memory`` holds the inputs of this layer at the ``mem_len`` most recent steps; give back
    the one that was returned at the previous call (None at the start of an episode).
    """

    def __init__(self, dim=64, num_heads=4, mem_len=32, max_dist=256):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.mem_len = mem_len
        self.max_dist = max_dist
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.dist_bias = nn.Embedding(max_dist, num_heads)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.gate1 = GRUGate(dim)
        self.gate2 = GRUGate(dim)

    def _update(self, memory, x):
        full = x if memory is None else torch.cat([memory, x], dim=1)
        return full[:, : self.mem_len].detach()

    def forward(self, x, memory=None):
        b, t, d = x.shape
        ctx = x if memory is None else torch.cat([memory, x], dim=1)
        s = ctx.size(1)
        q = self.q(self.norm1(x)).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(self.norm1(ctx)).view(b, s, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        qpos = torch.arange(s - t, s, device=x.device)
        kpos = torch.arange(s, device=x.device)
        dist = qpos[:, None] - kpos[None, :]
        bias = self.dist_bias(dist.clamp(0, self.max_dist - 1)).permute(2, 0, 1)
        score = q @ k.transpose(-1, -2) * self.head_dim ** -0.5 + bias
        score = score.masked_fill(dist < 0, float("-inf"))
        y = (score.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)

        h = self.gate1(x, torch.relu(self.o(y)))
        out = self.gate2(h, torch.relu(self.ff(self.norm2(h))))
        return out, self._update(memory, x)
