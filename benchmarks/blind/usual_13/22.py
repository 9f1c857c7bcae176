import torch
import torch.nn as nn


class ALiBiAttention(nn.Module):
    """Causal self-attention with linear biases (train short, test long)."""

    def __init__(self, d_model=64, n_heads=8):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.kqv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        slopes = 2.0 ** (-8.0 * torch.arange(1, n_heads + 1) / n_heads)
        self.register_buffer("m", slopes.view(1, n_heads, 1, 1))

    @staticmethod
    def get_relative_positions(seq_len, device):
        x = torch.arange(seq_len, device=device)[None, :]
        y = torch.arange(seq_len, device=device)[:, None]
        return y - x

    def forward(self, x):
        b, n, d = x.shape
        key, query, value = self.kqv(x).chunk(3, dim=-1)
        key = key.view(b, n, self.n_heads, self.d_head).permute(0, 2, 3, 1)
        query = query.view(b, n, self.n_heads, self.d_head).transpose(1, 2)
        value = value.view(b, n, self.n_heads, self.d_head).transpose(1, 2)

        bias = self.m * self.get_relative_positions(n, x.device)
        score = torch.matmul(query, key) / self.d_head ** 0.5 + bias
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        score = score.masked_fill(~mask, float("-inf"))
        attn = score.softmax(dim=-1)
        out = torch.matmul(attn, value)
        out = out.transpose(1, 2).reshape(b, n, d)
        return self.out(out)
