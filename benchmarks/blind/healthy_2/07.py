"""Deep Interest Network for CTR prediction (Zhou et al., KDD 2018)."""
import torch
import torch.nn as nn


class ActivationUnit(nn.Module):
    """Scores every clicked item against the candidate ad."""

    def __init__(self, dim, hidden=(64, 16)):
        super().__init__()
        layers, width = [], 4 * dim
        for h in hidden:
            layers += [nn.Linear(width, h), nn.PReLU()]
            width = h
        layers.append(nn.Linear(width, 1))
        self.mlp = nn.Sequential(*layers)

    def forward(self, query, keys):
        q = query.unsqueeze(1).expand_as(keys)
        feats = torch.cat([q, keys, q - keys, q * keys], dim=-1)
        return self.mlp(feats).squeeze(-1)


class DeepInterestNetwork(nn.Module):
    """
    Inputs of ``forward``:
        user_id      (B,)    long
        item_id      (B,)    long, candidate item
        cate_id      (B,)    long, category of the candidate
        hist_items   (B, L)  long, clicked items, padded at the end
        hist_cates   (B, L)  long, their categories
        hist_len     (B,)    long, number of clicks, may be 0 for a new user

    Returns the click logit, shape (B,).

    As in the paper, the attention weights are not normalised with a softmax: their sum is
    meant to express how strong the interest in the candidate is.
    """

    def __init__(self, num_users=1000, num_items=5000, num_cates=100, dim=16,
                 att_hidden=(64, 16), mlp_hidden=(128, 64), dropout=0.1):
        super().__init__()
        self.user_emb = nn.Embedding(num_users, dim)
        self.item_emb = nn.Embedding(num_items, dim)
        self.cate_emb = nn.Embedding(num_cates, dim)
        self.att = ActivationUnit(2 * dim, att_hidden)
        layers, width = [], dim + 3 * 2 * dim
        for h in mlp_hidden:
            layers += [nn.Linear(width, h), nn.PReLU(), nn.Dropout(dropout)]
            width = h
        layers.append(nn.Linear(width, 1))
        self.mlp = nn.Sequential(*layers)

    def embed_item(self, items, cates):
        return torch.cat([self.item_emb(items), self.cate_emb(cates)], dim=-1)

    def forward(self, user_id, item_id, cate_id, hist_items, hist_cates, hist_len):
        user = self.user_emb(user_id)
        target = self.embed_item(item_id, cate_id)
        history = self.embed_item(hist_items, hist_cates)

        steps = torch.arange(hist_items.size(1), device=hist_items.device)
        valid = steps.unsqueeze(0) < hist_len.unsqueeze(1)
        weights = self.att(target, history).masked_fill(~valid, 0.0)
        interest = torch.bmm(weights.unsqueeze(1), history).squeeze(1)

        x = torch.cat([user, target, interest, target * interest], dim=-1)
        return self.mlp(x).squeeze(-1)
