"""Deep Interest Network: click-through rate from a behaviour history and a candidate item."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Dice(nn.Module):
    """Data adaptive activation."""

    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=eps, affine=False)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        p = torch.sigmoid(self.bn(x))
        return p * x + (1 - p) * self.alpha * x


class LocalActivationUnit(nn.Module):
    """Scores each behaviour against the candidate with a small MLP.

    The scores are used as they are. There is no softmax in DIN: the sum of the weights tells
    how intense the interest is, and normalising would lose this.
    """

    def __init__(self, dim, hidden=(64, 32)):
        super().__init__()
        layers, width = [], 4 * dim
        for h in hidden:
            layers += [nn.Linear(width, h), nn.Sigmoid()]
            width = h
        layers.append(nn.Linear(width, 1))
        self.mlp = nn.Sequential(*layers)

    def forward(self, candidate, history, valid):
        """candidate (B, D), history (B, L, D), valid (B, L) bool -> (B, D)"""
        c = candidate.unsqueeze(1).expand_as(history)
        feats = torch.cat([c, history, c - history, c * history], dim=-1)
        weight = self.mlp(feats).squeeze(-1)
        weight = weight.masked_fill(~valid, 0.0)
        return torch.bmm(weight.unsqueeze(1), history).squeeze(1)


class DIN(nn.Module):
    def __init__(self, n_items=2000, n_cats=50, n_users=1000, dim=16, hidden=(80, 40)):
        super().__init__()
        self.item_emb = nn.Embedding(n_items, dim, padding_idx=0)
        self.cat_emb = nn.Embedding(n_cats, dim, padding_idx=0)
        self.user_emb = nn.Embedding(n_users, dim)
        self.attention = LocalActivationUnit(2 * dim)
        layers, width = [], 5 * dim
        for h in hidden:
            layers += [nn.Linear(width, h), Dice(h)]
            width = h
        layers.append(nn.Linear(width, 1))
        self.tower = nn.Sequential(*layers)

    def embed(self, item, cat):
        return torch.cat([self.item_emb(item), self.cat_emb(cat)], dim=-1)

    def forward(self, user, item, cat, hist_items, hist_cats, hist_len):
        """
        user, item, cat: (B,) ids.
        hist_items, hist_cats: (B, L) ids, filled from the left, 0 after the end.
        hist_len: (B,) number of behaviours, 0 for new users (their interest is the zero vector).
        Returns the logit of a click, (B,).
        """
        candidate = self.embed(item, cat)
        history = self.embed(hist_items, hist_cats)
        steps = torch.arange(hist_items.size(1), device=hist_items.device)
        valid = steps[None, :] < hist_len[:, None]
        interest = self.attention(candidate, history, valid)
        x = torch.cat([self.user_emb(user), candidate, interest], dim=-1)
        return self.tower(x).squeeze(-1)

    def loss(self, clicks, *inputs):
        return F.binary_cross_entropy_with_logits(self(*inputs), clicks.to(self.user_emb.weight.dtype))
