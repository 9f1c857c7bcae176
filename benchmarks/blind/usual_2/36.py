import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, hidden_dim=128, num_heads=8, dropout=0.1):
        super().__init__()
        if hidden_dim % num_heads != 0:
            raise ValueError("hidden_dim must be divisible by num_heads")
        self.num_heads = num_heads
        self.head_dim = hidden_dim // num_heads
        self.query = nn.Linear(hidden_dim, hidden_dim)
        self.key = nn.Linear(hidden_dim, hidden_dim)
        self.value = nn.Linear(hidden_dim, hidden_dim)
        self.fc = nn.Linear(hidden_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        """
        x: [batch_size, seq_len, hidden_dim]
        mask: [batch_size, seq_len], 1 = token, 0 = pad
        """
        batch_size, seq_len, hidden_dim = x.shape

        q = self.query(x).reshape(batch_size, seq_len, self.num_heads, self.head_dim).permute(0, 2, 1, 3)
        k = self.key(x).reshape(batch_size, seq_len, self.num_heads, self.head_dim).permute(0, 2, 1, 3)
        v = self.value(x).reshape(batch_size, seq_len, self.num_heads, self.head_dim).permute(0, 2, 1, 3)

        # [batch_size, num_heads, head_dim, seq_len]
        k_t = k.reshape(batch_size, self.num_heads, self.head_dim, seq_len)
        scores = torch.matmul(q, k_t) / math.sqrt(self.head_dim)

        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)

        weights = self.dropout(F.softmax(scores, dim=-1))
        out = torch.matmul(weights, v)
        out = out.permute(0, 2, 1, 3).reshape(batch_size, seq_len, hidden_dim)
        return self.fc(out)
