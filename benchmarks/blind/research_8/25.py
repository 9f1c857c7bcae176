import torch
import torch.nn as nn


class PointerDecoder(nn.Module):
    """Builds a tour over N nodes, one node per step (Vinyals et al.; greedy or sampled).

    Args:
        embedded: [B, N, dim] encoded nodes
    Returns:
        tour [B, N] (a permutation of the nodes) and the sum of the log-probabilities [B]
    """

    def __init__(self, dim=64, clip=10.0):
        super().__init__()
        self.clip = clip
        self.cell = nn.LSTMCell(dim, dim)
        self.w_ref = nn.Linear(dim, dim, bias=False)
        self.w_query = nn.Linear(dim, dim, bias=False)
        self.v = nn.Parameter(torch.empty(dim).uniform_(-dim ** -0.5, dim ** -0.5))
        self.start = nn.Parameter(torch.randn(dim) * 0.02)

    def point(self, query, refs, visited):
        u = torch.tanh(refs + self.w_query(query).unsqueeze(1)) @ self.v
        u = self.clip * torch.tanh(u)
        u = u.masked_fill(visited, float("-inf"))
        return torch.log_softmax(u, dim=-1)

    def forward(self, embedded, sample=False):
        b, n, d = embedded.shape
        refs = self.w_ref(embedded)
        state = (embedded.mean(dim=1), embedded.new_zeros(b, d))
        inp = self.start.expand(b, d)
        visited = torch.zeros(b, n, dtype=torch.bool, device=embedded.device)

        tour, total = [], embedded.new_zeros(b)
        for _ in range(n):
            state = self.cell(inp, state)
            logp = self.point(state[0], refs, visited)
            if sample:
                choice = torch.multinomial(logp.exp(), 1).squeeze(1)
            else:
                choice = logp.argmax(dim=-1)
            total = total + logp.gather(1, choice.unsqueeze(1)).squeeze(1)
            visited = torch.zeros_like(visited).scatter(1, choice.unsqueeze(1), True)
            inp = embedded[torch.arange(b, device=embedded.device), choice]
            tour.append(choice)
        return torch.stack(tour, dim=1), total
