import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionPooling(nn.Module):
    """Turns a sequence of states into one vector with a learned attention over time.

    Used on top of the BiLSTM in our sentiment models.
    """

    def __init__(self, dim=64, attn_dim=32):
        super().__init__()
        self.proj = nn.Linear(dim, attn_dim)
        self.score = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, states, mask=None):
        # states: B x T x D, mask: B x T (True = token, False = padding)
        e = self.score(torch.tanh(self.proj(states)))  # B x T x 1
        if mask is not None:
            e = e.masked_fill(~mask.unsqueeze(-1), -1e4)
        alpha = F.softmax(e, dim=-1)
        pooled = (alpha * states).sum(dim=1)
        return pooled
