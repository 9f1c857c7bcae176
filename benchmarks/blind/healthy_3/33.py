"""Attention model for the travelling salesman problem (Kool et al.), with a pointer decoder."""
import math

import torch
import torch.nn as nn


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm1 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, h):
        h = self.norm1(h + self.attn(h, h, h, need_weights=False)[0])
        return self.norm2(h + self.ff(h))


class PointerTSP(nn.Module):
    """Constructs a tour city by city.

    Args:
        clip: the pointer logits are squashed to (-clip, clip) before visited cities are removed.

    ``forward(coords (B, N, 2), sample)`` returns the tour (B, N), a permutation of the cities in each
    row, and its log probability (B,). Greedy unless ``sample`` is set.
    """

    def __init__(self, dim=128, heads=8, layers=3, hidden=512, clip=10.0):
        super().__init__()
        assert dim % heads == 0
        self.dim, self.heads, self.clip = dim, heads, clip
        self.embed = nn.Linear(2, dim)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads, hidden) for _ in range(layers)])
        self.start = nn.Parameter(torch.empty(2 * dim).uniform_(-1, 1) / math.sqrt(dim))
        self.graph_ctx = nn.Linear(dim, dim, bias=False)
        self.step_ctx = nn.Linear(2 * dim, dim, bias=False)
        # glimpse keys, glimpse values and pointer keys do not change during decoding
        self.project = nn.Linear(dim, 3 * dim, bias=False)
        self.glimpse_out = nn.Linear(dim, dim, bias=False)

    def encode(self, coords):
        h = self.embed(coords)
        for layer in self.layers:
            h = layer(h)
        return h

    def _pointer(self, query, gk, gv, pk, visited):
        """query (B, dim); gk, gv (B, heads, N, d); pk (B, N, dim); visited (B, N). Log probabilities (B, N)."""
        B = query.size(0)
        q = query.view(B, self.heads, 1, -1)
        score = (q @ gk.transpose(-1, -2)) / math.sqrt(gk.size(-1))
        score = score.masked_fill(visited[:, None, None, :], float("-inf"))
        glimpse = self.glimpse_out((score.softmax(dim=-1) @ gv).reshape(B, self.dim))

        logits = torch.einsum("bd,bnd->bn", glimpse, pk) / math.sqrt(self.dim)
        logits = self.clip * torch.tanh(logits)
        return logits.masked_fill(visited, float("-inf")).log_softmax(dim=-1)

    def forward(self, coords, sample=False):
        B, N, _ = coords.shape
        h = self.encode(coords)
        graph = self.graph_ctx(h.mean(dim=1))
        gk, gv, pk = self.project(h).chunk(3, dim=-1)
        gk, gv = (t.view(B, N, self.heads, -1).transpose(1, 2) for t in (gk.contiguous(), gv.contiguous()))

        rows = torch.arange(B, device=coords.device)
        visited = torch.zeros(B, N, dtype=torch.bool, device=coords.device)
        context = self.start.expand(B, -1)
        tour, log_prob = [], h.new_zeros(B)
        for _ in range(N):  # at least one city is left in each step
            log_p = self._pointer(graph + self.step_ctx(context), gk, gv, pk, visited)
            if sample:
                city = torch.multinomial(log_p.exp(), 1).squeeze(1)
            else:
                city = log_p.argmax(dim=-1)
            log_prob = log_prob + log_p[rows, city]
            # a new tensor: the old one is needed for the gradient of masked_fill
            visited = visited | nn.functional.one_hot(city, N).bool()
            tour.append(city)
            context = torch.cat([h[rows, tour[0]], h[rows, city]], dim=-1)
        return torch.stack(tour, dim=1), log_prob

    @staticmethod
    def tour_length(coords, tour):
        path = coords.gather(1, tour.unsqueeze(-1).expand(-1, -1, coords.size(-1)))
        return (path - path.roll(-1, dims=1)).norm(dim=-1).sum(dim=1)
