import torch
import torch.nn as nn


class AttentivePooling(nn.Module):
    """Collapses a sequence of frame features to one utterance vector: a weighted average whose
    weights come from a small MLP (self-attentive pooling for speaker verification).

    x: (batch, frames, dim)
    lengths: (batch,) number of valid frames, optional
    returns: (batch, dim), (batch, frames)
    """

    def __init__(self, dim=64, bottleneck=32):
        super().__init__()
        self.attention = nn.Sequential(
            nn.Linear(dim, bottleneck),
            nn.Tanh(),
            nn.Linear(bottleneck, 1, bias=False),
        )

    def forward(self, x, lengths=None):
        scores = self.attention(x).squeeze(-1)
        if lengths is not None:
            frames = torch.arange(x.size(1), device=x.device)
            scores = scores.masked_fill(frames[None, :] >= lengths[:, None], float("-inf"))
        weights = torch.softmax(scores, dim=1)
        pooled = torch.mean(weights.unsqueeze(-1) * x, dim=1)
        return pooled, weights
