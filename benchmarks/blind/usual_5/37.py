import torch
import torch.nn as nn


class EinsumSelfAttention(nn.Module):
    def __init__(self, embed_size=128, heads=4):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        assert self.head_dim * heads == embed_size, "Embed size needs to be divisible by heads"
        self.values = nn.Linear(embed_size, embed_size, bias=False)
        self.keys = nn.Linear(embed_size, embed_size, bias=False)
        self.queries = nn.Linear(embed_size, embed_size, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x, mask=None):
        """x: (N, len, embed), mask: (N, len) with 0 on padding"""
        N, length, _ = x.shape
        values = self.values(x).reshape(N, length, self.heads, self.head_dim)
        keys = self.keys(x).reshape(N, length, self.heads, self.head_dim)
        queries = self.queries(x).reshape(N, length, self.heads, self.head_dim)

        # queries: (N, q, heads, d), keys: (N, k, heads, d) -> energy: (N, q, k, heads)
        energy = torch.einsum("nqhd,nkhd->nqkh", queries, keys)
        energy = energy / (self.head_dim ** 0.5)
        if mask is not None:
            energy = energy.masked_fill(mask[:, None, :, None] == 0, -1e20)

        attention = torch.softmax(energy, dim=1)

        out = torch.einsum("nqkh,nkhd->nqhd", attention, values)
        return self.fc_out(out.reshape(N, length, self.embed_size))
