from typing import Tuple

import torch
from torch import Tensor, nn


class Glimpse(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.ref = nn.Linear(dim, dim, bias=False)
        self.query = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, nodes: Tensor, state: Tensor) -> Tensor:
        return self.v(torch.tanh(self.ref(nodes) + self.query(state).unsqueeze(1))).squeeze(-1)


class PointerTourDecoder(nn.Module):
    """Pointer-network decoder for routing problems (Bello et al., 2016).

    Builds a tour node by node. Logits are squashed into [-clip, clip], which keeps exploration alive, and every
    node is visited once.

    Args:
        dim: width of the node embeddings.
        clip: bound of the logits.
    """

    def __init__(self, dim: int = 128, clip: float = 10.0):
        super().__init__()
        self.clip = clip
        self.cell = nn.LSTMCell(dim, dim)
        self.pointer = Glimpse(dim)
        self.start = nn.Parameter(torch.empty(dim).uniform_(-0.1, 0.1))
        self.init_h = nn.Linear(dim, dim)

    def step_log_probs(self, nodes: Tensor, state: Tensor, visited: Tensor) -> Tensor:
        logits = self.pointer(nodes, state)
        logits = logits.masked_fill(visited, float("-inf"))
        logits = self.clip * torch.tanh(logits)
        return torch.log_softmax(logits, dim=-1)

    def forward(self, nodes: Tensor) -> Tuple[Tensor, Tensor]:
        """
        Args:
            nodes: [B, N, dim] node embeddings.

        Returns:
            the tours [B, N] and their log-probabilities [B]. Samples in training mode, else takes the best node.
        """
        b, n, dim = nodes.shape
        h = torch.tanh(self.init_h(nodes.mean(dim=1)))
        c = torch.zeros_like(h)
        inp = self.start.expand(b, dim)
        visited = torch.zeros(b, n, dtype=torch.bool, device=nodes.device)
        tour, total = [], nodes.new_zeros(b)

        for _ in range(n):
            h, c = self.cell(inp, (h, c))
            logp = self.step_log_probs(nodes, h, visited)
            if self.training:
                choice = torch.multinomial(logp.exp(), 1)
            else:
                choice = logp.argmax(dim=-1, keepdim=True)
            total = total + logp.gather(1, choice).squeeze(1)
            visited = visited.scatter(1, choice, True)
            inp = nodes.gather(1, choice.unsqueeze(-1).expand(b, 1, dim)).squeeze(1)
            tour.append(choice)
        return torch.cat(tour, dim=1), total
