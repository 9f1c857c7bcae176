"""The scores of a head are scaled by the width of its input instead of by the head size.

karpathy/ng-video-lecture #6 (2023)
https://github.com/karpathy/ng-video-lecture/pull/6
"""
import torch
import torch.nn as nn
from torch.nn import functional as F

n_embd = 64
n_head = 4
block_size = 16
dropout = 0.2


class MultiHeadAttention(nn.Module):
    """ multiple heads of self-attention in parallel """

    def __init__(self, head, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        out = self.dropout(self.proj(out))
        return out


class _HeadBase(nn.Module):

    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)


def broken() -> nn.Module:
    class Head(_HeadBase):
        """ one head of self-attention """

        def forward(self, x):
            B, T, C = x.shape
            k = self.key(x)    # (B,T,hs)
            q = self.query(x)  # (B,T,hs)
            # compute attention scores ("affinities")
            wei = q @ k.transpose(-2, -1) * C**-0.5  # (B, T, hs) @ (B, hs, T) -> (B, T, T)
            wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))  # (B, T, T)
            wei = F.softmax(wei, dim=-1)  # (B, T, T)
            wei = self.dropout(wei)
            # perform the weighted aggregation of the values
            v = self.value(x)  # (B,T,hs)
            out = wei @ v  # (B, T, T) @ (B, T, hs) -> (B, T, hs)
            return out

    torch.manual_seed(0)
    return MultiHeadAttention(Head, n_head, n_embd // n_head)


def fixed() -> nn.Module:
    class Head(_HeadBase):
        """ one head of self-attention """

        def forward(self, x):
            B, T, C = x.shape
            k = self.key(x)    # (B,T,hs)
            q = self.query(x)  # (B,T,hs)
            # compute attention scores ("affinities")
            wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5  # (B, T, hs) @ (B, hs, T) -> (B, T, T)
            wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))  # (B, T, T)
            wei = F.softmax(wei, dim=-1)  # (B, T, T)
            wei = self.dropout(wei)
            # perform the weighted aggregation of the values
            v = self.value(x)  # (B,T,hs)
            out = wei @ v  # (B, T, T) @ (B, T, hs) -> (B, T, hs)
            return out

    torch.manual_seed(0)
    return MultiHeadAttention(Head, n_head, n_embd // n_head)


def example():
    g = torch.Generator().manual_seed(35)
    return (torch.randn(2, 12, n_embd, generator=g),), {}
