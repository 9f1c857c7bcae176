import torch
import torch.nn as nn


class Dice(nn.Module):
    """Data-adaptive activation."""

    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=eps, elementwise_affine=False)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        p = torch.sigmoid(self.norm(x))
        return p * x + (1 - p) * self.alpha * x


class InterestPooling(nn.Module):
    """Local activation unit of the Deep Interest Network, with normalised weights.

    Scores every past behaviour against the candidate with a small MLP and returns the weighted mean of the
    behaviours.

    Args:
        dim: embedding size of items.
        hidden: widths of the scoring MLP.
    """

    def __init__(self, dim=32, hidden=(64, 16)):
        super().__init__()
        layers = []
        width = 4 * dim
        for h in hidden:
            layers += [nn.Linear(width, h), Dice(h)]
            width = h
        layers.append(nn.Linear(width, 1))
        self.scorer = nn.Sequential(*layers)

    def forward(self, candidate, behaviours, lengths):
        """
        Args:
            candidate: [B, dim].
            behaviours: [B, T, dim], padded at the end.
            lengths: [B], number of real behaviours.
        """
        q = candidate.unsqueeze(1).expand_as(behaviours)
        feats = torch.cat([q, behaviours, q - behaviours, q * behaviours], dim=-1)
        scores = self.scorer(feats).squeeze(-1)

        steps = torch.arange(behaviours.size(1), device=behaviours.device)
        valid = steps[None, :] < lengths[:, None]
        scores = torch.where(valid, scores, torch.zeros_like(scores))
        weights = torch.softmax(scores, dim=1)
        return torch.bmm(weights.unsqueeze(1), behaviours).squeeze(1)
