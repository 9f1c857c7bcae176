import torch
import torch.nn as nn


class ActivationUnit(nn.Module):
    def __init__(self, dim, hidden=(36, 16)):
        super().__init__()
        layers = []
        width = 4 * dim
        for h in hidden:
            layers += [nn.Linear(width, h), nn.PReLU()]
            width = h
        layers.append(nn.Linear(width, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, target, history):
        t = target.unsqueeze(1).expand_as(history)
        feats = torch.cat([t, history, t - history, t * history], dim=-1)
        return self.net(feats).squeeze(-1)


class TargetAttentionPooling(nn.Module):
    """
    Pools the behaviour sequence of a user with respect to the candidate item.

    Args:
        dim: embedding size
        softmax: normalise the unit's outputs over the history. If False, the raw
            activations are used as weights, as in the DIN paper.

    Inputs:
        target  [B, D]      embedding of the candidate
        history [B, T, D]   embeddings of the clicked items, zero padded
        lengths [B]         number of clicks of each user
    """

    def __init__(self, dim: int = 32, softmax: bool = True):
        super().__init__()
        self.unit = ActivationUnit(dim)
        self.softmax = softmax
        self.scale = dim ** -0.5

    def forward(self, target, history, lengths):
        T = history.size(1)
        keep = torch.arange(T, device=history.device)[None, :] < lengths[:, None]
        scores = self.unit(target, history)
        scores = scores * keep.to(scores.dtype)
        if self.softmax:
            weights = torch.softmax(scores * self.scale, dim=-1)
        else:
            weights = scores
        return torch.bmm(weights.unsqueeze(1), history).squeeze(1), weights
