import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Pointer(nn.Module):
    def __init__(self, hidden_size, tanh_exploration=10.0):
        super().__init__()
        self.W_q = nn.Linear(hidden_size, hidden_size, bias=False)
        self.W_ref = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size).uniform_(-1. / math.sqrt(hidden_size),
                                                                1. / math.sqrt(hidden_size)))
        self.C = tanh_exploration

    def forward(self, query, ref, available):
        u = torch.tanh(self.W_q(query).unsqueeze(1) + self.W_ref(ref)) @ self.v
        logits = self.C * torch.tanh(u)
        logits = logits * available
        return F.softmax(logits, dim=-1)


class PointerTSP(nn.Module):
    """Pointer network decoder for the travelling salesman problem.

    coords: (batch, n, 2) in the unit square. Returns the tour (batch, n), in which each city occurs once, and the
    log-probability of every step.
    """

    def __init__(self, embedding_size=32, hidden_size=64, tanh_exploration=10.0):
        super().__init__()
        self.embedding = nn.Linear(2, embedding_size)
        self.encoder = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.decoder = nn.LSTMCell(embedding_size, hidden_size)
        self.pointer = Pointer(hidden_size, tanh_exploration)
        self.start = nn.Parameter(torch.zeros(embedding_size).uniform_(-0.1, 0.1))

    def forward(self, coords, greedy=True):
        batch, n, _ = coords.shape
        emb = self.embedding(coords)
        ref, (h, c) = self.encoder(emb)
        h, c = h.squeeze(0), c.squeeze(0)

        inp = self.start.expand(batch, -1)
        available = torch.ones(batch, n, device=coords.device)
        rows = torch.arange(batch, device=coords.device)
        tour, log_probs = [], []
        for _ in range(n):
            h, c = self.decoder(inp, (h, c))
            probs = self.pointer(h, ref, available)
            idx = probs.argmax(dim=-1) if greedy else torch.multinomial(probs, 1).squeeze(1)
            tour.append(idx)
            log_probs.append(probs[rows, idx].clamp_min(1e-12).log())
            available = available.clone()
            available[rows, idx] = 0.0
            inp = emb[rows, idx]
        return torch.stack(tour, dim=1), torch.stack(log_probs, dim=1)
