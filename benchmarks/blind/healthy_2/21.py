import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class FeatureTokenizer(nn.Module):
    """One token per column, after a leading [CLS] token."""

    def __init__(self, num_numerical, cardinalities, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_numerical + 1, dim))  # row 0 is [CLS]
        self.bias = nn.Parameter(torch.empty(num_numerical + len(cardinalities), dim))
        offsets = torch.tensor([0] + list(cardinalities[:-1])).cumsum(0)
        self.register_buffer("offsets", offsets)
        self.embedding = nn.Embedding(sum(cardinalities), dim)
        bound = 1 / math.sqrt(dim)
        for p in (self.weight, self.bias, self.embedding.weight):
            nn.init.uniform_(p, -bound, bound)

    def forward(self, x_num, x_cat):
        ones = x_num.new_ones(x_num.size(0), 1)
        x = torch.cat([ones, x_num], dim=1).unsqueeze(-1) * self.weight
        x = torch.cat([x, self.embedding(x_cat + self.offsets)], dim=1)
        # [CLS] has no bias
        return x + F.pad(self.bias, (0, 0, 1, 0))


class Attention(nn.Module):
    def __init__(self, dim, n_heads, dropout):
        super().__init__()
        assert dim % n_heads == 0
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.w_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_q, x_kv):
        def heads(t):
            return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

        q, k, v = heads(self.w_q(x_q)), heads(self.w_k(x_kv)), heads(self.w_v(x_kv))
        p = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(k.size(-1)), dim=-1)
        return self.w_out((self.dropout(p) @ v).transpose(1, 2).flatten(2))


class ReGLU(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        return a * F.relu(b)


class FTTransformer(nn.Module):
    """FT-Transformer (Gorishniy et al., 2021) for mixed tabular data.

    ``x_num`` (B, num_numerical) float and ``x_cat`` (B, len(cardinalities)) long.
    """

    def __init__(self, num_numerical=8, cardinalities=(4, 7, 12), dim=64, n_heads=4, n_layers=3,
                 ffn_factor=4 / 3, attn_dropout=0.2, ffn_dropout=0.1, out_dim=1):
        super().__init__()
        hidden = int(dim * ffn_factor)
        self.tokenizer = FeatureTokenizer(num_numerical, cardinalities, dim)
        self.layers = nn.ModuleList()
        for i in range(n_layers):
            layer = nn.ModuleDict({
                "attn": Attention(dim, n_heads, attn_dropout),
                "norm_ffn": nn.LayerNorm(dim),
                "ffn": nn.Sequential(nn.Linear(dim, 2 * hidden), ReGLU(), nn.Dropout(ffn_dropout),
                                     nn.Linear(hidden, dim)),
            })
            if i > 0:  # pre-norm, except that the first block takes the raw tokens (see the paper)
                layer["norm_attn"] = nn.LayerNorm(dim)
            self.layers.append(layer)
        self.head_norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, out_dim)

    def forward(self, x_num, x_cat):
        x = self.tokenizer(x_num, x_cat)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            y = layer["norm_attn"](x) if "norm_attn" in layer else x
            if i == last:
                # only [CLS] is read out, so the last block computes nothing else
                x, q = x[:, :1], y[:, :1]
            else:
                q = y
            x = x + layer["attn"](q, y)
            x = x + layer["ffn"](layer["norm_ffn"](x))
        return self.head(F.relu(self.head_norm(x[:, 0])))
