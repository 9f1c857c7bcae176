import torch
import torch.nn as nn


class AttentionPooling(nn.Module):
    """Pools the hidden states of a sentence into one vector.

    Args:
        hidden_size: width of the hidden states
        attn_size: width of the scoring network
    """

    def __init__(self, hidden_size=64, attn_size=32):
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(hidden_size, attn_size),
            nn.Tanh(),
            nn.Linear(attn_size, 1, bias=False),
        )

    def forward(self, hidden_states, attention_mask=None):
        """
        hidden_states: (batch, seq, hidden_size)
        attention_mask: (batch, seq), 1 for tokens, 0 for padding
        """
        scores = self.score(hidden_states).squeeze(-1)
        if attention_mask is not None:
            scores = scores * attention_mask.to(scores.dtype)
        weights = torch.softmax(scores, dim=1)
        return torch.bmm(weights.unsqueeze(1), hidden_states).squeeze(1)
