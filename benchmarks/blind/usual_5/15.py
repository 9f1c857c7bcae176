import torch
import torch.nn as nn


class AttentivePooling(nn.Module):
    """Weighted average of the valid steps of a sequence.

    x: (batch, steps, dim), mask: (batch, steps) with 1 for valid steps.
    Returns the pooled vector (batch, dim) and the weights (batch, steps).
    """

    def __init__(self, dim=128, hidden=64):
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1, bias=False),
        )

    def forward(self, x, mask=None):
        energy = self.score(x).squeeze(-1)
        weights = torch.softmax(energy, dim=1)
        if mask is not None:
            weights = weights * mask.to(weights.dtype)
        pooled = torch.bmm(weights.unsqueeze(1), x).squeeze(1)
        return pooled, weights
