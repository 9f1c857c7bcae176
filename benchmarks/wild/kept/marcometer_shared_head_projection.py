"""Inputs are split into heads before the projections, so every head shares one small projection of its own slice.

MarcoMeter/episodic-transformer-memory-ppo #22 (2024)
https://github.com/MarcoMeter/episodic-transformer-memory-ppo/pull/22
"""
import torch
from torch import nn


class _MultiHeadAttentionBase(nn.Module):
    """Multi Head Attention without dropout inspired by https://github.com/aladdinpersson/Machine-Learning-Collection

    Arguments:
        embed_dim {int} -- Size of the embedding dimension
        num_heads {int} -- Number of attention heads
    """

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_size = embed_dim // num_heads
        assert self.head_size * num_heads == embed_dim, "Embedding dimension needs to be divisible by the number of heads"
        self.values, self.keys, self.queries = self.make_projections()
        self.fc_out = nn.Linear(self.num_heads * self.head_size, embed_dim)

    def attend(self, values, keys, query, mask):
        # query, keys, values: (N, len, heads, head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [query, keys])
        # Mask padded indices so their attention weights become 0
        if mask is not None:
            energy = energy.masked_fill(mask.unsqueeze(1).unsqueeze(1) == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.head_size ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values])
        return self.fc_out(out.reshape(out.shape[0], out.shape[1], self.num_heads * self.head_size)), attention


def broken() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        def make_projections(self):
            return [nn.Linear(self.head_size, self.head_size, bias=False) for _ in range(3)]

        def forward(self, values, keys, query, mask):
            """
            Arguments:
                values, keys {torch.tensor} -- Episodic memories, (N, L, D)
                query {torch.tensor} -- Current observation embedding, (N, 1, D)
                mask {torch.tensor} -- Attention mask, (N, L), 1 for stored memories and 0 for empty slots
            """
            N = query.shape[0]
            values = values.reshape(N, values.shape[1], self.num_heads, self.head_size)
            keys = keys.reshape(N, keys.shape[1], self.num_heads, self.head_size)
            query = query.reshape(N, query.shape[1], self.num_heads, self.head_size)
            values, keys, queries = self.values(values), self.keys(keys), self.queries(query)
            return self.attend(values, keys, queries, mask)

    torch.manual_seed(0)
    return MultiHeadAttention(32, 4)


def fixed() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        def make_projections(self):
            return [nn.Linear(self.embed_dim, self.embed_dim, bias=False) for _ in range(3)]

        def forward(self, values, keys, query, mask):
            """
            Arguments:
                values, keys {torch.tensor} -- Episodic memories, (N, L, D)
                query {torch.tensor} -- Current observation embedding, (N, 1, D)
                mask {torch.tensor} -- Attention mask, (N, L), 1 for stored memories and 0 for empty slots
            """
            N = query.shape[0]
            values, keys, query = self.values(values), self.keys(keys), self.queries(query)
            values = values.reshape(N, values.shape[1], self.num_heads, self.head_size)
            keys = keys.reshape(N, keys.shape[1], self.num_heads, self.head_size)
            queries = query.reshape(N, query.shape[1], self.num_heads, self.head_size)
            return self.attend(values, keys, queries, mask)

    torch.manual_seed(0)
    return MultiHeadAttention(32, 4)


def example():
    g = torch.Generator().manual_seed(33)
    memory = torch.randn(2, 8, 32, generator=g)
    query = torch.randn(2, 1, 32, generator=g)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return (memory, memory, query, mask), {}
