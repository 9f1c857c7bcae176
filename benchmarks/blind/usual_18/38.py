import torch
import torch.nn as nn


class AttentivePooling(nn.Module):
    """Pools a variable-length sequence into one vector with learned attention weights.

    Parameters
    ----------
    input_dim : size of the features
    hidden_dim : size of the scoring MLP

    Inputs
    ------
    features : (batch, time, input_dim)
    lengths : optional (batch,) number of valid frames per utterance
    """

    def __init__(self, input_dim=64, hidden_dim=32):
        super().__init__()
        self.scorer = nn.Sequential(
            nn.Linear(input_dim, hidden_dim),
            nn.Tanh(),
            nn.Linear(hidden_dim, 1),
        )

    @staticmethod
    def lengths_to_mask(lengths, max_len):
        steps = torch.arange(max_len, device=lengths.device)
        return (steps[None, :] < lengths[:, None]).float()

    def forward(self, features, lengths=None):
        scores = self.scorer(features).squeeze(-1)
        if lengths is not None:
            mask = self.lengths_to_mask(lengths, features.size(1))
            scores = scores * mask
        weights = torch.softmax(scores, dim=1)
        pooled = torch.sum(features * weights.unsqueeze(-1), dim=1)
        return pooled, weights
