import torch
import torch.nn as nn


class RetrievedChunkAttention(nn.Module):
    """Cross-attention of a retrieval-augmented reader on its retrieved passages.

    hidden:     [B, T, dim]
    passages:   [B, K, L, dim]   K passages with L tokens each, encoded separately
    mask:       [B, K, L] bool   True for passage tokens

    Returns the updated hidden states and the share [B, K] of the attention that each passage
    received (mean over heads and positions). The shares are the targets for distilling the
    retriever, they add up to one.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.norm = nn.LayerNorm(dim)
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)

    def _split(self, t):
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, hidden, passages, mask=None):
        B, K, L, D = passages.shape
        source = passages.reshape(B, K * L, D)
        q = self._split(self.q_proj(self.norm(hidden)))
        k = self._split(self.k_proj(source))
        v = self._split(self.v_proj(source))

        scores = q @ k.transpose(-1, -2) * self.head_dim ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask.reshape(B, 1, 1, K * L), torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)

        out = (weights @ v).transpose(1, 2).flatten(2)
        hidden = hidden + self.o_proj(out)

        share = weights.mean(dim=(1, 2)).view(B, L, K).sum(dim=1)
        return hidden, share
