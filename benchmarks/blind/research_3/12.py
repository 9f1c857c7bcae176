import torch
import torch.nn as nn


class Dice(nn.Module):
    def __init__(self, dim, eps=1e-8):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, eps=eps)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        shape = x.shape
        flat = x.reshape(-1, shape[-1])
        p = torch.sigmoid(self.bn(flat))
        flat = p * flat + (1 - p) * self.alpha * flat
        return flat.view(shape)


class DINAttentionPooling(nn.Module):
    """Local activation unit of the Deep Interest Network (Zhou et al., KDD 2018).

    The intensities are *not* normalised with a softmax (Sec. 4.3): their sum is
    meant to tell how strong the interest in the candidate is. Set
    ``weight_normalization=True`` for the usual attention.

    query:  [B, E]      candidate ad
    keys:   [B, T, E]   behaviours of the user, right padded
    length: [B]         number of behaviours
    """

    def __init__(self, embedding_dim=16, hidden=(80, 40), weight_normalization=False):
        super().__init__()
        self.weight_normalization = weight_normalization
        mods, width = [], 4 * embedding_dim
        for h in hidden:
            mods += [nn.Linear(width, h), Dice(h)]
            width = h
        mods.append(nn.Linear(width, 1))
        self.mlp = nn.Sequential(*mods)

    def forward(self, query, keys, length):
        B, T, E = keys.shape
        q = query.unsqueeze(1).expand(-1, T, -1)
        score = self.mlp(torch.cat([q, keys, q - keys, q * keys], dim=-1)).squeeze(-1)

        valid = torch.arange(T, device=keys.device)[None, :] < length[:, None]
        if self.weight_normalization:
            score = score / E ** 0.5
            score = torch.softmax(score.masked_fill(~valid, -2.0 ** 31), dim=-1)
        else:
            score = torch.where(valid, score, torch.zeros_like(score))

        return torch.bmm(score.unsqueeze(1), keys).squeeze(1)
