import torch
import torch.nn as nn


class Dice(nn.Module):
    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=eps, affine=False)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        p = torch.sigmoid(self.bn(x))
        return (p * x + (1 - p) * self.alpha * x).view(shape)


class LocalActivationUnit(nn.Module):
    """Deep Interest Network, section 4.3.

    The weights of the behaviours are used as they are, "the constraint sum(w) = 1 is relaxed", so that
    the intensity of a user's interest is kept. Padded behaviours (id 0) weigh nothing.
    """

    def __init__(self, num_items=1000, dim=16, hidden=(36, 16)):
        super().__init__()
        self.item_emb = nn.Embedding(num_items, dim, padding_idx=0)
        layers, last = [], 4 * dim
        for h in hidden:
            layers += [nn.Linear(last, h), Dice(h)]
            last = h
        layers.append(nn.Linear(last, 1))
        self.mlp = nn.Sequential(*layers)

    def forward(self, candidate, history):
        """candidate: [B] ids, history: [B, L] ids -> user interest [B, dim]"""
        keys = self.item_emb(history)
        query = self.item_emb(candidate).unsqueeze(1).expand_as(keys)
        feats = torch.cat([query, keys, query - keys, query * keys], dim=-1)
        w = self.mlp(feats).squeeze(-1)
        w = w * (history != 0).to(w.dtype)
        return torch.bmm(w.unsqueeze(1), keys).squeeze(1)
