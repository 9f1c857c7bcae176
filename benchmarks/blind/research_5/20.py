import torch
import torch.nn as nn


class LocalActivationUnit(nn.Module):
    """Attention of the Deep Interest Network.

    Scores come from an MLP on ``[item, candidate, item - candidate, item * candidate]``. They are
    used as they are, without a softmax: the paper wants the sum of the weights to carry the
    intensity of the interest. Padded items get weight zero.

    Args:
        candidate: ``[B, dim]``
        history: ``[B, T, dim]``
        lengths: ``[B]``, number of clicked items; padding is on the right.
    """

    def __init__(self, dim=32, hidden=(64, 16)):
        super().__init__()
        layers, width = [], 4 * dim
        for h in hidden:
            layers += [nn.Linear(width, h), nn.PReLU(h)]
            width = h
        self.mlp = nn.Sequential(*layers)
        self.score = nn.Linear(width, 1)

    def _activate(self, feats):
        b, t, f = feats.shape
        return self.score(self.mlp(feats.reshape(b * t, f))).view(b, t)

    def forward(self, candidate, history, lengths):
        t = history.size(1)
        c = candidate.unsqueeze(1).expand_as(history)
        weights = self._activate(torch.cat([history, c, history - c, history * c], dim=-1))
        inside = torch.arange(t, device=history.device)[None, :] < lengths[:, None]
        weights = weights * inside.to(weights.dtype)
        return torch.bmm(weights.unsqueeze(1), history).squeeze(1)
