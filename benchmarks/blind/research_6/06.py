import torch
import torch.nn as nn


class Dice(nn.Module):
    def __init__(self, features, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(features, eps=eps, affine=False)
        self.alpha = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        shape = x.shape
        flat = x.reshape(-1, shape[-1])
        p = torch.sigmoid(self.bn(flat))
        return (p * flat + (1 - p) * self.alpha * flat).reshape(shape)


class InterestPooling(nn.Module):
    """Target attention over the behaviour sequence (DIN, normalised variant).

    Parameters
    ----------
    query : [B, D] candidate item
    history : [B, T, D] clicked items
    lengths : [B] number of real clicks; clicks behind it are padding

    Returns the user interest [B, D], an attention-weighted average of the real clicks.
    """

    def __init__(self, dim=32, hidden=(80, 40)):
        super().__init__()
        layers = []
        prev = 4 * dim
        for width in hidden:
            layers += [nn.Linear(prev, width), Dice(width)]
            prev = width
        layers.append(nn.Linear(prev, 1))
        self.unit = nn.Sequential(*layers)
        self.dim = dim

    def forward(self, query, history, lengths):
        B, T, D = history.shape
        target = query.unsqueeze(1).expand(-1, T, -1)
        feats = torch.cat([target, history, target - history, target * history], dim=-1)
        scores = self.unit(feats).squeeze(-1)
        scores = scores / D ** 0.5

        mask = torch.arange(T, device=history.device)[None, :] < lengths[:, None]
        scores = scores * mask.to(scores.dtype)
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(weights.unsqueeze(1), history).squeeze(1)
