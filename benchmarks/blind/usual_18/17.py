import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def split_heads(x, num_heads):
    b, n, d = x.shape
    return x.reshape(b, n, num_heads, d // num_heads).permute(0, 2, 1, 3)


def merge_heads(x):
    b, h, n, d = x.shape
    return x.permute(0, 2, 1, 3).reshape(b, n, h * d)


def multi_head_attention(x, params, num_heads):
    """Stateless multi-head self-attention, usable with weights from an inner loop (MAML)."""
    q = split_heads(F.linear(x, params["wq"], params["bq"]), num_heads)
    k = split_heads(F.linear(x, params["wk"], params["bk"]), num_heads)
    v = split_heads(F.linear(x, params["wv"], params["bv"]), num_heads)

    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.size(-1))
    weights = F.softmax(scores, dim=2)
    y = merge_heads(torch.matmul(weights, v))
    return F.linear(y, params["wo"], params["bo"])


class MetaAttention(nn.Module):
    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.params = nn.ParameterDict()
        for name in ("q", "k", "v", "o"):
            self.params["w" + name] = nn.Parameter(torch.empty(dim, dim))
            self.params["b" + name] = nn.Parameter(torch.zeros(dim))
            nn.init.xavier_uniform_(self.params["w" + name])

    def forward(self, x, params=None):
        if params is None:
            params = self.params
        return multi_head_attention(x, params, self.num_heads)
