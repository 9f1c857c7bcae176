import torch
from torch import nn, einsum


class EinsumAttention(nn.Module):
    """
    Multi-head attention with einsum only.

    forward(values, keys, query, mask): all (N, len, embed_size), mask broadcastable to
    (N, heads, query_len, key_len) with 0 at the positions to hide.
    """

    def __init__(self, embed_size=64, heads=4):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        assert self.head_dim * heads == embed_size, "Embedding size needs to be divisible by heads"

        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask=None):
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]

        values = self.values(values).reshape(N, value_len, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(N, key_len, self.heads, self.head_dim)
        queries = self.queries(query).reshape(N, query_len, self.heads, self.head_dim)

        energy = einsum("nqhd,nkhd->nhqk", queries, keys)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))

        attention = torch.softmax(energy / (self.head_dim ** (1 / 2)), dim=2)

        out = einsum("nhql,nlhd->nqhd", attention, values).reshape(N, query_len, self.embed_size)
        return self.fc_out(out)
