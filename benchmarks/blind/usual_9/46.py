import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttentivePooling(nn.Module):
    """Sentence embedding by attention over the token states.

    Args:
        input_dim: size of the token states
        attention_dim: size of the hidden layer of the scorer
        num_hops: number of attention distributions, their results are concatenated
    """

    def __init__(self, input_dim=128, attention_dim=64, num_hops=1):
        super().__init__()
        self.num_hops = num_hops
        self.ws1 = nn.Linear(input_dim, attention_dim, bias=False)
        self.ws2 = nn.Linear(attention_dim, num_hops, bias=False)

    def forward(self, states, mask=None):
        """
        states: (batch, length, input_dim)
        mask: (batch, length), 1 for tokens and 0 for padding
        """
        scores = self.ws2(torch.tanh(self.ws1(states)))
        scores = scores.transpose(1, 2)
        if mask is not None:
            scores = scores * mask.unsqueeze(1).to(scores.dtype)

        weights = F.softmax(scores, dim=-1)
        pooled = torch.bmm(weights, states)
        return pooled.flatten(1)
