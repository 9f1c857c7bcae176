import torch
import torch.nn as nn


class AttentivePooling(nn.Module):
    """Pools a sequence of token vectors into one sentence vector.

    A small MLP scores every token; the scores are normalised over the sentence and the
    sentence vector is the weighted sum of the tokens.
    """

    def __init__(self, dim: int = 64, hidden: int = 32):
        super().__init__()
        self.scorer = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        # tokens: [batch, seq, dim], mask: [batch, seq] (1 = token, 0 = padding)
        scores = self.scorer(tokens).squeeze(-1)
        if mask is not None:
            scores = scores * mask.to(scores.dtype)
        weights = torch.softmax(scores, dim=1)
        return torch.sum(weights.unsqueeze(-1) * tokens, dim=1)
