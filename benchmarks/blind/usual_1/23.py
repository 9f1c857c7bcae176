import torch
import torch.nn as nn


class EinsumSelfAttention(nn.Module):
    def __init__(self, embed_size=64, heads=4):
        super(EinsumSelfAttention, self).__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads

        assert self.head_dim * heads == embed_size, "Embedding size needs to be divisible by heads"

        self.to_queries = nn.Linear(embed_size, embed_size, bias=False)
        self.to_keys = nn.Linear(embed_size, embed_size, bias=False)
        self.to_values = nn.Linear(embed_size, embed_size, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x, mask=None):
        N, length, _ = x.shape

        queries = self.to_queries(x).reshape(N, length, self.heads, self.head_dim)
        keys = self.to_keys(x).reshape(N, length, self.heads, self.head_dim)
        values = self.to_values(x).reshape(N, length, self.heads, self.head_dim)

        # energy: (N, heads, query_len, key_len)
        energy = torch.einsum("nqhd,nkhd->nhqk", queries, keys)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))

        attention = torch.softmax(energy / (self.head_dim ** 0.5), dim=3)

        # out: (N, query_len, heads, head_dim)
        out = torch.einsum("nhlk,nlhd->nlhd", attention, values)
        out = out.reshape(N, length, self.heads * self.head_dim)
        return self.fc_out(out)
