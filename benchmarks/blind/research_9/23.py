from typing import Optional, Tuple

import torch
import torch.nn as nn


class GRUGate(nn.Module):
    def __init__(self, dim: int, bias: float = 2.0):
        super().__init__()
        self.wx = nn.Linear(dim, 3 * dim, bias=False)
        self.uh = nn.Linear(dim, 2 * dim, bias=False)
        self.ug = nn.Linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.full((dim,), bias))

    def forward(self, h, x):
        xr, xz, xg = self.wx(x).chunk(3, dim=-1)
        hr, hz = self.uh(h).chunk(2, dim=-1)
        r = torch.sigmoid(xr + hr)
        z = torch.sigmoid(xz + hz - self.bias)
        g = torch.tanh(xg + self.ug(r * h))
        return (1 - z) * h + z * g


class GTrXLBlock(nn.Module):
    """Gated Transformer-XL block for agents (identity map reordering + GRU gates).

    ``obs`` is a segment of T steps [B, T, D]; ``memory`` holds the M steps before it [B, M, D].
    The block is causal: step t may use the memory and the steps up to t. Returns the output and the
    memory for the next segment.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, mem_len: int = 16, max_len: int = 256):
        super().__init__()
        self.num_heads = num_heads
        self.mem_len = mem_len
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.rel_bias = nn.Embedding(max_len, num_heads)
        self.gate1 = GRUGate(dim)
        self.gate2 = GRUGate(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def _split(self, t):
        return t.view(t.size(0), t.size(1), self.num_heads, -1).transpose(1, 2)

    def forward(self, obs: torch.Tensor, memory: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        B, T, D = obs.shape
        if memory is None:
            memory = obs.new_zeros(B, 0, D)
        M = memory.size(1)
        full = torch.cat([memory.detach(), obs], dim=1)
        normed = self.norm1(full)
        q = self._split(self.q(normed[:, M:]))
        k, v = (self._split(t) for t in self.kv(normed).chunk(2, dim=-1))

        dist = torch.arange(M, M + T, device=obs.device)[:, None] - torch.arange(M + T, device=obs.device)[None, :]
        bias = self.rel_bias(dist.clamp(0, self.rel_bias.num_embeddings - 1)).permute(2, 0, 1)
        scores = q @ k.transpose(-2, -1) * (D // self.num_heads) ** -0.5 + bias
        mask = torch.triu(torch.ones(T, M + T, dtype=torch.bool, device=obs.device), diagonal=1)
        attn = scores.masked_fill(mask, float("-inf")).softmax(dim=-1)

        y = self.o((attn @ v).transpose(1, 2).reshape(B, T, D))
        h = self.gate1(obs, torch.relu(y))
        out = self.gate2(h, torch.relu(self.ff(self.norm2(h))))
        return out, full[:, -self.mem_len:].detach()
