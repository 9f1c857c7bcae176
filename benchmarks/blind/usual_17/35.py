import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedKVAttention(nn.Module):
    """Multi-query causal attention with tied keys and values.

    A single projection gives one 'memory' vector per token that serves both as key and as value for
    all the query heads; this halves the cache of ordinary multi-query attention. No output
    projection: the head outputs are mixed by the MLP that follows.
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_query = nn.Linear(dim, dim, bias=False)
        self.to_memory = nn.Linear(dim, self.head_dim, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        query = self.to_query(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        memory = self.to_memory(x).unsqueeze(1).expand(-1, self.num_heads, -1, -1)
        y = F.scaled_dot_product_attention(query, memory, memory, is_causal=True)
        return y.transpose(1, 2).reshape(b, n, c)
