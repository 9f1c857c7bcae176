import torch
import torch.nn as nn


class GRUGate(nn.Module):
    """GRU-type gate in place of the residual sum; the bias keeps it close to identity at first."""

    def __init__(self, dim, bias=2.0):
        super().__init__()
        self.w = nn.Linear(dim, 3 * dim, bias=False)
        self.u_rz = nn.Linear(dim, 2 * dim, bias=False)
        self.u_g = nn.Linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.full((dim,), bias))

    def forward(self, x, y):
        w_r, w_z, w_g = self.w(y).chunk(3, dim=-1)
        u_r, u_z = self.u_rz(x).chunk(2, dim=-1)
        r = torch.sigmoid(w_r + u_r)
        z = torch.sigmoid(w_z + u_z - self.bias)
        g = torch.tanh(w_g + self.u_g(r * x))
        return (1 - z) * x + z * g


class GTrXLLayer(nn.Module):
    """Gated Transformer-XL layer for policies (Parisotto et al.).

    Args:
        x: observations of the current segment ``[B, T, dim]``
        memory: layer inputs of the steps before it ``[B, M, dim]``, or None
    Returns:
        output ``[B, T, dim]`` and the memory for the next segment.
    """

    def __init__(self, dim=64, num_heads=4, memory_len=16, max_distance=64):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.memory_len = memory_len
        self.max_distance = max_distance
        self.norm_attn = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.distance_bias = nn.Embedding(max_distance + 1, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.gate_attn = GRUGate(dim)
        self.gate_mlp = GRUGate(dim)

    def _attend(self, x, memory):
        b, t, _ = x.shape
        full = torch.cat([memory, x], dim=1)
        m = memory.size(1)
        q = self.to_q(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = (
            y.view(b, m + t, self.num_heads, self.head_dim).transpose(1, 2)
            for y in self.to_kv(full).chunk(2, dim=-1)
        )
        now = torch.arange(m, m + t, device=x.device)
        then = torch.arange(m + t, device=x.device)
        distance = (now[:, None] - then[None, :]).clamp(0, self.max_distance)
        bias = self.distance_bias(distance).permute(2, 0, 1)

        scores = q @ k.transpose(-2, -1) * self.head_dim ** -0.5 + bias
        future = torch.triu(torch.ones(t, m + t, dtype=torch.bool, device=x.device), diagonal=1)
        scores = scores.masked_fill(future, float("-inf"))
        y = scores.softmax(dim=-1) @ v
        return self.to_out(y.transpose(1, 2).reshape(b, t, -1))

    def forward(self, x, memory=None):
        if memory is None:
            memory = x.new_zeros(x.size(0), 0, x.size(-1))
        new_memory = torch.cat([memory, x], dim=1)[:, -self.memory_len:].detach()
        y = self._attend(self.norm_attn(x), self.norm_attn(memory))
        x = self.gate_attn(x, torch.relu(y))
        y = self.mlp(self.norm_mlp(x))
        return self.gate_mlp(x, torch.relu(y)), new_memory
