import torch
import torch.nn as nn


class GRUGate(nn.Module):
    def __init__(self, dim, bias=2.0):
        super().__init__()
        self.wr, self.ur = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.wz, self.uz = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.wg, self.ug = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.full((dim,), bias))

    def forward(self, x, y):
        r = torch.sigmoid(self.wr(y) + self.ur(x))
        z = torch.sigmoid(self.wz(y) + self.uz(x) - self.bias)
        h = torch.tanh(self.wg(y) + self.ug(r * x))
        return (1 - z) * x + z * h


class GatedMemoryAttention(nn.Module):
    """Attention sublayer of a GTrXL policy.

    Observations of the current rollout attend to one another (causally) and to the hidden
    states of the previous rollout. Returns the output and the memory for the next call.

    obs:    [B, T, dim]
    memory: [B, M, dim] or None
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, mem_len: int = 16, max_distance: int = 64):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.mem_len = mem_len
        self.max_distance = max_distance
        self.norm = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.distance_bias = nn.Embedding(max_distance, num_heads)
        self.gate = GRUGate(dim)

    def forward(self, obs, memory=None):
        B, T, D = obs.shape
        context = obs if memory is None else torch.cat([memory, obs], dim=1)
        M = context.size(1) - T

        q = self.q(self.norm(obs)).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(self.norm(context)).chunk(2, dim=-1)
        k = k.view(B, M + T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, M + T, self.num_heads, self.head_dim).transpose(1, 2)

        steps = torch.arange(M + T, device=obs.device)
        distance = (steps[M:, None] - steps[None, :]).clamp(0, self.max_distance - 1)
        bias = self.distance_bias(distance).permute(2, 0, 1)

        scores = q @ k.transpose(-1, -2) * self.head_dim ** -0.5 + bias
        hidden = torch.ones(T, M + T, dtype=torch.bool, device=obs.device).triu(diagonal=1)
        scores = scores.masked_fill(hidden, float("-inf"))
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, D)

        out = self.gate(obs, torch.relu(self.proj(y)))
        return out, context[:, -self.mem_len:].detach()
