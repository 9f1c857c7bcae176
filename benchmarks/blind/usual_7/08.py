import math

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """Multi-head self attention as in "Attention Is All You Need"."""

    def __init__(self, embed_dim=64, num_heads=8, dropout=0.0):
        super().__init__()
        assert embed_dim % num_heads == 0, "Embedding dimension must be 0 modulo number of heads."
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads

        self.q_linear = nn.Linear(embed_dim, embed_dim)
        self.k_linear = nn.Linear(embed_dim, embed_dim)
        self.v_linear = nn.Linear(embed_dim, embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.drop = nn.Dropout(dropout)
        self._reset_parameters()

    def _reset_parameters(self):
        for lin in (self.q_linear, self.k_linear, self.v_linear, self.out):
            nn.init.xavier_uniform_(lin.weight)
            lin.bias.data.fill_(0)

    def split_heads(self, x):
        batch_size, seq_len, _ = x.shape
        return x.view(batch_size, seq_len, self.num_heads, self.head_dim).transpose(1, 2)

    def combine_heads(self, x):
        batch_size, _, seq_len, _ = x.shape
        return x.contiguous().view(batch_size, seq_len, self.embed_dim)

    def forward(self, x, mask=None, return_attention=False):
        q = self.split_heads(self.q_linear(x))
        k = self.split_heads(self.k_linear(x))
        v = self.split_heads(self.v_linear(x))

        attn_logits = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        if mask is not None:
            # mask: (batch, 1 or heads, 1 or query, key), 0 = hidden
            attn_logits = attn_logits.masked_fill(mask == 0, -9e15)
        attention = torch.softmax(attn_logits, dim=-1)
        values = torch.matmul(self.drop(attention), v)

        o = self.out(self.combine_heads(values))
        if return_attention:
            return o, attention
        return o
