import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionHead(nn.Module):
    def __init__(self, dim_in: int, dim_q: int, dim_k: int):
        super().__init__()
        self.q = nn.Linear(dim_in, dim_q)
        self.k = nn.Linear(dim_in, dim_k)
        self.v = nn.Linear(dim_in, dim_k)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(query), self.k(key), self.v(value)
        temp = q.bmm(k.transpose(1, 2))
        softmax = F.softmax(temp / q.size(-1) ** 0.5, dim=-1)
        return softmax.bmm(v)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads: int = 4, dim_in: int = 64, dim_q: int = 16, dim_k: int = 16):
        super().__init__()
        self.heads = [AttentionHead(dim_in, dim_q, dim_k) for _ in range(num_heads)]
        self.linear = nn.Linear(num_heads * dim_k, dim_in)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat([h(query, key, value) for h in self.heads], dim=-1))
