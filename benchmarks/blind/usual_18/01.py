import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    """Multi-Head Attention from "Attention Is All You Need".

    Args:
        d_model: size of the model dimension
        num_heads: number of parallel heads
        dropout: dropout applied to the attention probabilities
    """

    def __init__(self, d_model=64, num_heads=4, dropout=0.0):
        super().__init__()
        assert d_model % num_heads == 0, "d_model must be divisible by num_heads"
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads

        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def split_heads(self, x):
        batch_size, seq_len, _ = x.size()
        return x.view(batch_size, seq_len, self.num_heads, self.d_k).transpose(1, 2)

    def scaled_dot_product_attention(self, q, k, v, mask=None):
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        probs = self.dropout(F.softmax(scores, dim=-1))
        return torch.matmul(probs, v)

    def combine_heads(self, x):
        batch_size, _, seq_len, _ = x.size()
        return x.contiguous().view(batch_size, seq_len, self.d_model)

    def forward(self, q, k, v, mask=None):
        q = self.split_heads(self.W_q(q))
        k = self.split_heads(self.W_k(k))
        v = self.split_heads(self.W_v(v))
        out = self.scaled_dot_product_attention(q, k, v, mask)
        return self.W_o(self.combine_heads(out))
