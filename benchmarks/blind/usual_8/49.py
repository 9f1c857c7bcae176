import math

import torch
import torch.nn as nn


class ALiBiSelfAttention(nn.Module):
    """Causal self-attention with linear biases (ALiBi) in place of position embeddings."""

    def __init__(self, d_model: int = 64, num_heads: int = 8, max_len: int = 256, dropout: float = 0.1):
        super().__init__()
        assert num_heads & (num_heads - 1) == 0, "num_heads must be a power of two"
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.kqv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

        base = 2 ** (-8 / num_heads)
        m = torch.tensor([base ** (i + 1) for i in range(num_heads)])
        pos = torch.arange(max_len)
        distance = (pos[:, None] - pos[None, :]).clamp(min=0)
        self.register_buffer("alibi", m.view(-1, 1, 1) * distance, persistent=False)
        self.register_buffer(
            "mask", torch.tril(torch.ones(max_len, max_len, dtype=torch.bool)), persistent=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch_size, seq_len, d_model = x.shape

        key, query, value = self.kqv(x).chunk(3, dim=-1)
        key = key.view(batch_size, seq_len, self.num_heads, -1).permute(0, 2, 3, 1)
        query = query.view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        value = value.view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)

        score = torch.matmul(query, key) / math.sqrt(self.head_dim)
        score = score + self.alibi[:, :seq_len, :seq_len]
        score = score.masked_fill(~self.mask[:seq_len, :seq_len], float("-inf"))

        attn = self.dropout(torch.softmax(score, dim=-1))
        out = torch.matmul(attn, value).transpose(1, 2).reshape(batch_size, seq_len, d_model)
        return self.out(out)
