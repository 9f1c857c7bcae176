import math

import torch
import torch.nn as nn


def positions_in_segment(segment_ids):
    """(B, T) ids -> (B, T) positions that restart at 0 with every new segment."""
    b, t = segment_ids.shape
    idx = torch.arange(t, device=segment_ids.device).expand(b, t)
    starts = torch.ones_like(segment_ids, dtype=torch.bool)
    starts[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    last_start = torch.where(starts, idx, torch.zeros_like(idx)).cummax(dim=1).values
    return idx - last_start


class PackedSelfAttention(nn.Module):
    """Causal self-attention for rows in which several documents are packed.

    ``segment_ids`` (B, T) numbers the documents of a row 1, 2, 3, ... from left to
    right; the tail of the row that holds nothing has the id 0. Documents in the
    same row are independent of each other.
    """

    def __init__(self, dim=128, num_heads=4, max_len=1024):
        super().__init__()
        self.h = num_heads
        self.d = dim // num_heads
        self.pos = nn.Embedding(max_len, dim)
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def build_mask(self, segment_ids):
        t = segment_ids.size(1)
        causal = torch.ones(t, t, dtype=torch.bool, device=segment_ids.device).tril()
        segment = segment_ids[:, :, None] >= segment_ids[:, None, :]
        return (causal[None] & segment)[:, None]

    def forward(self, x, segment_ids):
        b, t, c = x.shape
        x = x + self.pos(positions_in_segment(segment_ids))
        q = self.wq(x).view(b, t, self.h, self.d).transpose(1, 2)
        k = self.wk(x).view(b, t, self.h, self.d).transpose(1, 2)
        v = self.wv(x).view(b, t, self.h, self.d).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.d)
        scores = scores.masked_fill(~self.build_mask(segment_ids), float("-inf"))
        probs = torch.softmax(scores.float(), dim=-1).to(v.dtype)
        y = torch.matmul(probs, v).transpose(1, 2).contiguous().view(b, t, c)
        y = self.wo(y)
        return y * (segment_ids > 0).unsqueeze(-1)
