from typing import List, Optional, Tuple

import torch
import torch.nn as nn


class GRUGate(nn.Module):
    """GRU gating of GTrXL; a positive bias starts the block near the identity."""

    def __init__(self, dim, bias=2.0):
        super().__init__()
        self.Wr, self.Ur = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.Wz, self.Uz = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.Wg, self.Ug = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.bg = nn.Parameter(torch.full((dim,), bias))

    def forward(self, x, y):
        r = torch.sigmoid(self.Wr(y) + self.Ur(x))
        z = torch.sigmoid(self.Wz(y) + self.Uz(x) - self.bg)
        h = torch.tanh(self.Wg(y) + self.Ug(r * x))
        return (1 - z) * x + z * h


class MemoryAttention(nn.Module):
    def __init__(self, dim, heads, max_dist):
        super().__init__()
        self.heads, self.max_dist = heads, max_dist
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.rel_bias = nn.Embedding(max_dist + 1, heads)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mem):
        B, T, C = x.shape
        ctx = torch.cat([mem, x], dim=1)
        S, M = ctx.size(1), mem.size(1)
        q = self.q(x).view(B, T, self.heads, -1).transpose(1, 2)
        k, v = self.kv(ctx).view(B, S, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        att = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5
        dist = (torch.arange(T, device=x.device)[:, None] + M) - torch.arange(S, device=x.device)[None, :]
        att = att + self.rel_bias(dist.clamp(0, self.max_dist)).permute(2, 0, 1)
        att = att.masked_fill(dist < 0, float("-inf")).softmax(-1)
        return self.out((att @ v).transpose(1, 2).reshape(B, T, C))


class GTrXLLayer(nn.Module):
    def __init__(self, dim, heads, ff_dim, max_dist):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = MemoryAttention(dim, heads, max_dist)
        self.ff = nn.Sequential(nn.Linear(dim, ff_dim), nn.ReLU(), nn.Linear(ff_dim, dim))
        self.gate1, self.gate2 = GRUGate(dim), GRUGate(dim)

    def forward(self, x, mem):
        y = torch.relu(self.attn(self.ln1(x), self.ln1(mem)))
        x = self.gate1(x, y)
        return self.gate2(x, torch.relu(self.ff(self.ln2(x))))


class GTrXL(nn.Module):
    """Gated Transformer-XL for RL. ``memory`` keeps, for every layer, the inputs of the most recent
    ``mem_len`` environment steps; pass the returned one along with the next segment."""

    def __init__(self, obs_dim=16, dim=64, num_heads=4, num_layers=2, ff_dim=128, mem_len=16):
        super().__init__()
        self.mem_len, self.dim = mem_len, dim
        self.encode = nn.Linear(obs_dim, dim)
        self.layers = nn.ModuleList([GTrXLLayer(dim, num_heads, ff_dim, 4 * mem_len) for _ in range(num_layers)])

    def init_memory(self, batch, ref):
        return [ref.new_zeros(batch, 0, self.dim) for _ in self.layers]

    def _update(self, mem, h):
        with torch.no_grad():
            return torch.cat([mem, h], dim=1)[:, :self.mem_len].detach()

    def forward(self, obs, memory: Optional[List[torch.Tensor]] = None) -> Tuple[torch.Tensor, List[torch.Tensor]]:
        h = self.encode(obs)
        if memory is None:
            memory = self.init_memory(obs.size(0), h)
        new_memory = []
        for layer, mem in zip(self.layers, memory):
            new_memory.append(self._update(mem, h))
            h = layer(h, mem)
        return h, new_memory
