import torch
from torch import nn
import torch.nn.functional as F


class SpeechSelfAttention(nn.Module):
    """Self-attention over acoustic frames.

    frames: (batch, time, dim)
    lengths: (batch,) number of valid frames, or None when nothing is padded
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)
        self.linear_out = nn.Linear(dim, dim)

    def forward_qkv(self, frames):
        shape = (frames.size(0), frames.size(1), self.num_heads, self.head_dim)
        q = self.linear_q(frames).view(shape).transpose(1, 2)
        k = self.linear_k(frames).view(shape).transpose(1, 2)
        v = self.linear_v(frames).view(shape).transpose(1, 2)
        return q, k, v

    def forward(self, frames, lengths=None):
        batch, time, dim = frames.shape
        q, k, v = self.forward_qkv(frames)

        scores = torch.matmul(q, k.transpose(-2, -1)) * self.head_dim ** -0.5
        if lengths is not None:
            padded = torch.arange(time, device=frames.device)[None, :] >= lengths[:, None]
            scores = scores.masked_fill(padded[:, None, None, :], torch.finfo(scores.dtype).min)

        attn = torch.softmax(scores, dim=-1)
        attn = F.dropout(attn, self.dropout)

        x = torch.matmul(attn, v).transpose(1, 2).contiguous().view(batch, time, dim)
        return self.linear_out(x)
