import torch
from torch import nn


class BahdanauAttention(nn.Module):
    """Additive attention: score(q, k) = v^T tanh(W q + U k).

    query:  (batch, query_size), the previous decoder state
    keys:   (batch, src_len, key_size), the encoder states
    length: (batch,) number of valid source positions, every source has at least one

    No scaling is used because tanh already bounds the energies. The context is a mean of
    the encoder states themselves, there is no value projection.
    """

    def __init__(self, query_size=32, key_size=64, hidden_size=48):
        super().__init__()
        self.query_layer = nn.Linear(query_size, hidden_size, bias=False)
        self.key_layer = nn.Linear(key_size, hidden_size, bias=False)
        self.energy_layer = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, query, keys, length=None):
        projected = self.query_layer(query).unsqueeze(1) + self.key_layer(keys)
        scores = self.energy_layer(torch.tanh(projected)).squeeze(-1)

        if length is not None:
            positions = torch.arange(keys.size(1), device=keys.device)
            scores = scores.masked_fill(positions[None, :] >= length[:, None], float("-inf"))

        alphas = scores.softmax(dim=-1)
        context = torch.bmm(alphas.unsqueeze(1), keys).squeeze(1)
        return context, alphas
