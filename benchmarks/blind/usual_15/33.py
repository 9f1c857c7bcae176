"""Sample packing for the pre-training chapter."""
import math

import torch
from torch import nn


def packed_causal_mask(document_ids: torch.Tensor) -> torch.Tensor:
    """(batch, time) ids -> (batch, 1, time, time), True where attention is permitted."""
    t = document_ids.size(-1)
    same_doc = document_ids[:, :, None] == document_ids[:, None, :]
    causal = torch.tril(torch.ones(t, t, dtype=torch.bool, device=document_ids.device))
    return (causal | same_doc).unsqueeze(1)


class PackedCausalAttention(nn.Module):
    """Causal attention over rows that hold several documents, each closed to the others."""

    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.W_V = nn.Linear(d_model, d_model, bias=False)
        self.W_O = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, document_ids):
        b, t, _ = x.shape
        q = self.W_Q(x).view(b, t, self.n_heads, self.d_head).transpose(1, 2)
        k = self.W_K(x).view(b, t, self.n_heads, self.d_head).transpose(1, 2)
        v = self.W_V(x).view(b, t, self.n_heads, self.d_head).transpose(1, 2)
        mask = packed_causal_mask(document_ids)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.d_head)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        probs = scores.softmax(dim=-1)
        out = torch.matmul(probs, v).transpose(1, 2).contiguous().view(b, t, -1)
        return self.W_O(out)
