from typing import Sequence

import torch
import torch.nn as nn


class LocalActivationUnit(nn.Module):
    def __init__(self, emb_dim, hidden_units: Sequence[int]):
        super().__init__()
        dims = [4 * emb_dim] + list(hidden_units)
        layers = []
        for i, o in zip(dims[:-1], dims[1:]):
            layers += [nn.Linear(i, o), nn.PReLU()]
        self.mlp = nn.Sequential(*layers)
        self.out = nn.Linear(dims[-1], 1)

    def forward(self, query, keys):
        q = query.unsqueeze(1).expand_as(keys)
        return self.out(self.mlp(torch.cat([q, keys, q - keys, q * keys], dim=-1))).squeeze(-1)


class DINInterestPooling(nn.Module):
    """Interest extraction of Deep Interest Network (Zhou et al., KDD 2018).

    As in the paper, the scores are used as they are (sum_i a_i < 1 or > 1 is fine: the magnitude keeps the
    intensity of the interest). ``normalize=True`` gives the softmax variant of the public code.

    Inputs:
        target:  (B,) candidate item ids
        history: (B, T) clicked item ids, 0 = no item
    """

    def __init__(self, num_items=500, emb_dim=16, att_hidden=(32, 16), normalize=False):
        super().__init__()
        self.item_emb = nn.Embedding(num_items, emb_dim, padding_idx=0)
        self.unit = LocalActivationUnit(emb_dim, att_hidden)
        self.normalize = normalize

    def forward(self, target, history):
        query = self.item_emb(target)
        keys = self.item_emb(history)
        valid = history > 0
        a = self.unit(query, keys)
        if self.normalize:
            a = a / keys.size(-1) ** 0.5
            a = a.masked_fill(~valid, -2.0 ** 31)
            a = torch.softmax(a, dim=-1)
        else:
            a = a * valid.to(a.dtype)
        interest = torch.bmm(a.unsqueeze(1), keys).squeeze(1)
        return torch.cat([interest, query], dim=-1)
