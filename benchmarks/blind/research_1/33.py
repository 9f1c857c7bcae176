import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class PointerDecoder(nn.Module):
    """Greedy pointer decoder for routing problems.

    At each step a context query glimpses at the nodes with multi-head attention, and the compatibility
    with every node gives the distribution of the next stop.

    Args:
        embeddings: ``(batch, n, dim)`` node embeddings
        visited: optional bool ``(batch, n)``, ``True`` for nodes that are not to be visited (any more)

    Returns:
        the tour ``(batch, steps)`` and its log-likelihood ``(batch,)``
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, tanh_clipping: float = 10.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.tanh_clipping = tanh_clipping
        self.start = nn.Parameter(torch.empty(dim))
        nn.init.uniform_(self.start, -1 / math.sqrt(dim), 1 / math.sqrt(dim))
        self.project_nodes = nn.Linear(dim, 3 * dim, bias=False)
        self.project_graph = nn.Linear(dim, dim, bias=False)
        self.project_step = nn.Linear(dim, dim, bias=False)
        self.project_out = nn.Linear(dim, dim, bias=False)

    def glimpse(self, query, key, value, mask):
        b, n, d = key.shape
        q = query.view(b, self.num_heads, 1, self.head_dim)
        k = key.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = value.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        score = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        score = score.masked_fill(mask[:, None, None, :], -math.inf)
        return self.project_out((score.softmax(-1) @ v).reshape(b, d))

    def forward(self, embeddings: torch.Tensor,
                visited: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        b, n, d = embeddings.shape
        if visited is None:
            visited = torch.zeros(b, n, dtype=torch.bool, device=embeddings.device)
        steps = int((~visited).sum(dim=1).min())

        glimpse_k, glimpse_v, logit_k = self.project_nodes(embeddings).chunk(3, dim=-1)
        available = (~visited).unsqueeze(-1).to(embeddings.dtype)
        graph = (embeddings * available).sum(1) / available.sum(1).clamp(min=1)
        fixed = self.project_graph(graph)

        last = self.start.expand(b, d)
        log_likelihood = embeddings.new_zeros(b)
        tour = torch.zeros(b, steps, dtype=torch.long, device=embeddings.device)
        for t in range(steps):
            query = fixed + self.project_step(last)
            blocked = visited.clone()
            query = self.glimpse(query, glimpse_k, glimpse_v, blocked)
            logits = torch.einsum("bd,bnd->bn", query, logit_k) / math.sqrt(d)
            logits = self.tanh_clipping * torch.tanh(logits)
            logits = logits.masked_fill(blocked, -math.inf)

            log_p = logits.log_softmax(dim=-1)
            value, choice = log_p.max(dim=-1)
            log_likelihood = log_likelihood + value
            visited.scatter_(1, choice.unsqueeze(1), True)
            last = embeddings[torch.arange(b, device=embeddings.device), choice]
            tour[:, t] = choice
        return tour, log_likelihood
