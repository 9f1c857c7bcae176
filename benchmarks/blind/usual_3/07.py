import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, emb_size=64, heads=4, dropout=0.0):
        super(MultiHeadSelfAttention, self).__init__()
        self.emb_size = emb_size
        self.heads = heads
        self.head_dim = emb_size // heads

        assert self.head_dim * heads == emb_size, "emb_size needs to be divisible by heads"

        self.keys = nn.Linear(emb_size, emb_size)
        self.queries = nn.Linear(emb_size, emb_size)
        self.values = nn.Linear(emb_size, emb_size)
        self.att_drop = nn.Dropout(dropout)
        self.projection = nn.Linear(emb_size, emb_size)

    def forward(self, x, mask=None):
        N, seq_len, _ = x.shape

        # N x heads x seq_len x head_dim
        queries = self.queries(x).reshape(N, seq_len, self.heads, self.head_dim).transpose(1, 2)
        keys = self.keys(x).reshape(N, seq_len, self.heads, self.head_dim).transpose(1, 2)
        values = self.values(x).reshape(N, seq_len, self.heads, self.head_dim).transpose(1, 2)

        energy = torch.einsum("nhqd,nhkd->nhqk", [queries, keys])
        if mask is not None:
            # mask: N x seq_len, 1 for tokens and 0 for padding
            energy = energy.masked_fill(mask[:, None, None, :] == 0, float("-1e20"))

        scaling = self.head_dim ** (1 / 2)
        att = F.softmax(energy / scaling, dim=1)
        att = self.att_drop(att)

        out = torch.einsum("nhqk,nhkd->nhqd", [att, values])
        out = out.transpose(1, 2).reshape(N, seq_len, self.emb_size)
        return self.projection(out)
