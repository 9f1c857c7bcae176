import torch
import torch.nn as nn


class AttentivePooling(nn.Module):
    """Self-attentive pooling of frame features into one utterance vector.

    x: (batch, frames, dim), lengths: (batch,) or None  ->  (batch, dim)
    """

    def __init__(self, dim: int = 64, hidden: int = 32):
        super().__init__()
        self.proj = nn.Linear(dim, hidden)
        self.context = nn.Linear(hidden, 1, bias=False)

    def forward(self, x, lengths=None):
        e = self.context(torch.tanh(self.proj(x)))
        if lengths is not None:
            frames = torch.arange(x.shape[1], device=x.device)
            pad = frames[None, :] >= lengths[:, None]
            e = e.masked_fill(pad.unsqueeze(-1), -1e4)
        w = torch.softmax(e, dim=0)
        return torch.sum(w * x, dim=1)
