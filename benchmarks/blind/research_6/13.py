import torch
import torch.nn as nn
import torch.nn.functional as F


class GRUGate(nn.Module):
    """Gating layer of GTrXL. The positive bias keeps the block close to the identity at the start."""

    def __init__(self, dim, bias=2.0):
        super().__init__()
        self.w_r, self.u_r = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.w_z, self.u_z = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.w_g, self.u_g = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        nn.init.constant_(self.w_z.bias, -bias)

    def forward(self, x, y):
        r = torch.sigmoid(self.w_r(y) + self.u_r(x))
        z = torch.sigmoid(self.w_z(y) + self.u_z(x))
        h = torch.tanh(self.w_g(y) + self.u_g(r * x))
        return (1 - z) * x + z * h


def rel_shift(x):
    b, h, q, k = x.shape
    x = F.pad(x, (1, 0))
    return x.view(b, h, k + 1, q)[:, :, 1:].reshape(b, h, q, k)


class GTrXLBlock(nn.Module):
    """One gated Transformer-XL block for RL agents.

    x: [B, T, D], memory: [B, M, D] inputs of this block at the last M steps (or None).
    Returns the output and the memory for the next call.
    """

    def __init__(self, dim=64, num_heads=4, ff_dim=128, mem_len=32):
        super().__init__()
        self.h, self.d, self.mem_len = num_heads, dim // num_heads, mem_len
        self.ln_attn = nn.LayerNorm(dim)
        self.ln_ff = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.r = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(num_heads, 1, self.d))
        self.w = nn.Parameter(torch.zeros(num_heads, 1, self.d))
        self.ff = nn.Sequential(nn.Linear(dim, ff_dim), nn.ReLU(), nn.Linear(ff_dim, dim))
        self.gate_attn = GRUGate(dim)
        self.gate_ff = GRUGate(dim)
        inv = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv, persistent=False)

    def _positions(self, length, dtype):
        # distance of the oldest key first, 0 last
        dist = torch.arange(length - 1, -1, -1, device=self.inv_freq.device).float()
        ang = dist[:, None] * self.inv_freq
        return torch.cat([ang.sin(), ang.cos()], dim=-1).to(dtype)

    def forward(self, x, memory=None):
        B, T, D = x.shape
        if memory is None:
            memory = x.new_zeros(B, 0, D)
        M = memory.size(1)
        history = torch.cat([memory.detach(), x], dim=1)
        L = M + T

        norm = self.ln_attn(history)
        q = self.q(norm[:, M:]).view(B, T, self.h, self.d).transpose(1, 2)
        k, v = (t.view(B, L, self.h, self.d).transpose(1, 2) for t in self.kv(norm).chunk(2, -1))
        r = self.r(self._positions(L, x.dtype)).view(L, self.h, self.d).transpose(0, 1)

        content = (q + self.u) @ k.transpose(-1, -2)
        position = rel_shift((q + self.w) @ r.transpose(-1, -2))
        logits = (content + position) * self.d ** -0.5
        ahead = torch.ones(T, L, dtype=torch.bool, device=x.device).triu(1 + M)
        attn = logits.masked_fill(ahead, float("-inf")).softmax(-1)
        y = self.o((attn @ v).transpose(1, 2).reshape(B, T, D))

        x = self.gate_attn(x, F.relu(y))
        x = self.gate_ff(x, F.relu(self.ff(self.ln_ff(x))))
        return x, history[:, max(0, L - self.mem_len):].detach()
