import torch
import torch.nn as nn


class Dice(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n, elementwise_affine=False)
        self.alpha = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        p = torch.sigmoid(self.norm(x))
        return p * x + (1 - p) * self.alpha * x


class InterestAttention(nn.Module):
    """Target attention of DIN with normalised weights.

    :param target: embedding of the candidate item, (batch, dim)
    :param history: embeddings of the clicked items, (batch, max_len, dim), padded at the end
    :param lengths: number of clicked items, (batch,)
    :return: the user's interest with respect to the candidate, (batch, dim)
    """

    def __init__(self, dim=16, hidden=(64, 32)):
        super().__init__()
        layers, last = [], 4 * dim
        for h in hidden:
            layers += [nn.Linear(last, h), Dice(h)]
            last = h
        layers.append(nn.Linear(last, 1))
        self.scorer = nn.Sequential(*layers)

    def forward(self, target, history, lengths):
        max_len = history.size(1)
        q = target.unsqueeze(1).expand_as(history)
        scores = self.scorer(torch.cat([q, history, q - history, q * history], dim=-1)).squeeze(-1)

        mask = torch.arange(max_len, device=history.device)[None, :] < lengths[:, None]
        scores = scores * mask.to(scores.dtype)
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(weights.unsqueeze(1), history).squeeze(1)
