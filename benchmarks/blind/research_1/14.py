# Deep Interest Network, target attention over the user's behaviour sequence
import torch
import torch.nn as nn


class Dice(nn.Module):
    def __init__(self, emb_size, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(emb_size, eps=eps)
        self.alpha = nn.Parameter(torch.zeros(emb_size))

    def forward(self, x):
        shape = x.shape
        flat = x.reshape(-1, shape[-1])
        p = torch.sigmoid(self.bn(flat))
        return (self.alpha * (1 - p) * flat + p * flat).reshape(shape)


class LocalActivationUnit(nn.Module):
    def __init__(self, embedding_dim, hidden_units):
        super().__init__()
        layers = []
        size = 4 * embedding_dim
        for h in hidden_units:
            layers += [nn.Linear(size, h), Dice(h)]
            size = h
        layers.append(nn.Linear(size, 1))
        self.mlp = nn.Sequential(*layers)

    def forward(self, query, behavior):
        query = query.unsqueeze(1).expand_as(behavior)
        return self.mlp(torch.cat([query, behavior, query - behavior, query * behavior], dim=-1)).squeeze(-1)


class TargetAttentionPooling(nn.Module):
    """
    Pools a padded behaviour sequence with respect to the candidate item.

    :param query: (B, E) embedding of the candidate
    :param keys: (B, T, E) embeddings of the behaviours
    :param keys_length: (B,) number of real behaviours in every row
    :return: (B, E)
    """

    def __init__(self, embedding_dim=32, hidden_units=(64, 16), weight_normalization=True):
        super().__init__()
        self.weight_normalization = weight_normalization
        self.attention = LocalActivationUnit(embedding_dim, hidden_units)

    def forward(self, query, keys, keys_length):
        max_length = keys.size(1)
        scores = self.attention(query, keys)

        keys_mask = torch.arange(max_length, device=keys.device)[None, :] < keys_length[:, None]
        scores = scores * keys_mask.to(scores.dtype)
        if self.weight_normalization:
            scores = torch.softmax(scores / keys.size(-1) ** 0.5, dim=-1)

        return torch.bmm(scores.unsqueeze(1), keys).squeeze(1)
