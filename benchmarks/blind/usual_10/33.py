import torch
import torch.nn as nn


class KeyMajorAttention(nn.Module):
    """Causal attention with transposed scores.

    Scores are laid out as (batch, head, source, target), i.e. keys come first, because that is the
    layout of our export target. The distribution of a target position is a column.
    """

    def __init__(self, width: int = 64, n_head: int = 4):
        super().__init__()
        self.n_head = n_head
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        q = self.q(x).view(n, length, self.n_head, -1)
        k = self.k(x).view(n, length, self.n_head, -1)
        v = self.v(x).view(n, length, self.n_head, -1)

        scores = torch.einsum("bshd,bthd->bhst", k, q) / q.shape[-1] ** 0.5
        source = torch.arange(length, device=x.device)[:, None]
        target = torch.arange(length, device=x.device)[None, :]
        scores = scores.masked_fill(source > target, float("-inf"))
        probs = torch.softmax(scores, dim=2)
        y = torch.einsum("bhst,bshd->bthd", probs, v)
        return self.o(y.reshape(n, length, width))
