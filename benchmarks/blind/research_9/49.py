import math

import torch
import torch.nn as nn


class PointerNetwork(nn.Module):
    """Pointer network for tours (Vinyals et al., 2015; Bello et al., 2016).

    Encodes the points [B, N, 2], then emits a permutation of them with additive (Bahdanau) attention:
    u_j = C * tanh(v . tanh(W1 e_j + W2 d)). Additive attention takes no 1/sqrt(d). Points that were
    visited are masked after the clipping with C, so that their probability is exactly zero.

    Returns the tour [B, N] and its log-probability [B].
    """

    def __init__(self, hidden: int = 64, clip: float = 10.0):
        super().__init__()
        self.clip = clip
        self.embed = nn.Linear(2, hidden)
        self.encoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.decoder = nn.LSTMCell(hidden, hidden)
        self.w1 = nn.Linear(hidden, hidden, bias=False)
        self.w2 = nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Parameter(torch.empty(hidden).uniform_(-1 / math.sqrt(hidden), 1 / math.sqrt(hidden)))
        self.start = nn.Parameter(torch.empty(hidden).uniform_(-1 / math.sqrt(hidden), 1 / math.sqrt(hidden)))

    def forward(self, points: torch.Tensor, sample: bool = False):
        B, N, _ = points.shape
        x = self.embed(points)
        enc, (h, c) = self.encoder(x)
        h, c = h[0], c[0]
        keys = self.w1(enc)
        visited = torch.zeros(B, N, dtype=torch.bool, device=points.device)
        inp = self.start.expand(B, -1)

        tour, log_prob = [], points.new_zeros(B)
        for _ in range(N):
            h, c = self.decoder(inp, (h, c))
            u = torch.tanh(keys + self.w2(h).unsqueeze(1)) @ self.v
            u = self.clip * torch.tanh(u)
            logp = u.masked_fill(visited, float("-inf")).log_softmax(dim=-1)
            if sample:
                choice = torch.multinomial(logp.exp(), 1)
            else:
                choice = logp.argmax(dim=-1, keepdim=True)
            log_prob = log_prob + logp.gather(1, choice).squeeze(1)
            visited = visited.scatter(1, choice, True)
            inp = x[torch.arange(B, device=x.device), choice.squeeze(1)]
            tour.append(choice)
        return torch.cat(tour, dim=1), log_prob
