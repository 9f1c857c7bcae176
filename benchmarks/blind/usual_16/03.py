import torch
import torch.nn as nn


class CappedSelfAttention(nn.Module):
    """Self attention for the streaming speech encoder.

    Each frame sees ``left_context`` frames to its left, itself, and ``right_context`` frames
    of look-ahead. Logits are bounded to (-logit_cap, logit_cap) with a tanh.

    Args:
        lengths: (batch,) number of valid frames of each utterance.
    """

    def __init__(self, dim=64, num_heads=4, left_context=8, right_context=0, logit_cap=5.0, dropout=0.0):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim {dim} is not divisible by num_heads {num_heads}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.left_context = left_context
        self.right_context = right_context
        self.logit_cap = logit_cap
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)

    def _split(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _visible(self, n, lengths, device):
        pos = torch.arange(n, device=device)
        delta = pos[None, :] - pos[:, None]
        vis = (delta <= self.right_context) & (delta >= -self.left_context)
        vis = vis[None, None]
        if lengths is not None:
            valid = pos[None, :] < lengths[:, None]
            vis = vis & valid[:, None, None, :]
        return vis

    def forward(self, x, lengths=None):
        n = x.size(1)
        q, k, v = self._split(self.to_q(x)), self._split(self.to_k(x)), self._split(self.to_v(x))
        logits = torch.matmul(q, k.transpose(-1, -2)) * self.head_dim ** -0.5
        vis = self._visible(n, lengths, x.device)
        logits = logits.masked_fill(~vis, torch.finfo(logits.dtype).min)
        logits = self.logit_cap * torch.tanh(logits / self.logit_cap)
        probs = self.drop(logits.softmax(dim=-1))
        out = torch.matmul(probs, v).transpose(1, 2).flatten(2)
        return self.proj(out)
