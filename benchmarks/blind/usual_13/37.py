import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, embed_size=64, heads=4):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        assert self.head_dim * heads == embed_size, "Embedding size needs to be divisible by heads"

        self.values = nn.Linear(embed_size, embed_size, bias=False)
        self.keys = nn.Linear(embed_size, embed_size, bias=False)
        self.queries = nn.Linear(embed_size, embed_size, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask=None):
        N = query.shape[0]

        v = self.values(values).view(N, -1, self.heads, self.head_dim).transpose(1, 2)
        k = self.keys(keys).view(N, -1, self.heads, self.head_dim).permute(0, 2, 3, 1)
        q = self.queries(query).view(N, -1, self.heads, self.head_dim).transpose(1, 2)

        # (N, heads, query_len, key_len)
        energy = torch.matmul(q, k) / math.sqrt(k.size(-1))
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))

        attention = F.softmax(energy, dim=-1)
        out = torch.matmul(attention, v)
        out = out.transpose(1, 2).reshape(N, -1, self.embed_size)
        return self.fc_out(out)
