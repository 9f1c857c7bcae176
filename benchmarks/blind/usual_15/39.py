import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionPooling(nn.Module):
    """One vector per sequence: a weighted average of the token states.

    hidden_states:  (batch, seq_len, dim)
    attention_mask: (batch, seq_len), 1 for tokens and 0 for padding
    """

    def __init__(self, dim: int = 64, hidden: int = 32):
        super().__init__()
        self.scorer = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1, bias=False),
        )

    def forward(self, hidden_states, attention_mask=None, return_weights=False):
        logits = self.scorer(hidden_states).squeeze(-1)
        weights = F.softmax(logits, dim=-1)
        if attention_mask is not None:
            weights = weights * attention_mask.to(weights.dtype)
        pooled = torch.einsum("bn,bnd->bd", weights, hidden_states)
        if return_weights:
            return pooled, weights
        return pooled
