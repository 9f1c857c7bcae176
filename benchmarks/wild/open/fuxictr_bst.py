"""The padding mask is repeated sample by sample although the scores are laid out head by head, so heads use other samples' masks.

reczoo/FuxiCTR #130 (2024)
https://github.com/reczoo/FuxiCTR/issues/130
"""
import torch
import torch.nn as nn


def _build(rev):
    class BehaviorAttention(nn.Module):
        """Self-attention over a behaviour sequence.

        forward(x, padding_mask): x (B, L, C); padding_mask (B, L) bool, True at padding.
        """

        def __init__(self, dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, dim // num_heads
            self.W_q = nn.Linear(dim, dim)
            self.W_k = nn.Linear(dim, dim)
            self.W_v = nn.Linear(dim, dim)
            self.W_o = nn.Linear(dim, dim)
            self.norm = nn.LayerNorm(dim)

        def get_mask(self, padding_mask):
            seq_len = padding_mask.size(1)
            if rev == 1:
                mask = padding_mask.unsqueeze(1).repeat(1, seq_len * self.num_heads, 1)
                return mask.view(-1, seq_len, seq_len)
            return padding_mask.unsqueeze(1).expand(-1, seq_len, -1).repeat(self.num_heads, 1, 1)

        def forward(self, x, padding_mask=None):
            B, L, C = x.shape
            q, k, v = (torch.cat(w(x).split(self.head_dim, dim=-1), dim=0) for w in (self.W_q, self.W_k, self.W_v))
            scores = torch.bmm(q, k.transpose(1, 2)) / self.head_dim ** 0.5
            if padding_mask is not None:
                scores = scores.masked_fill(self.get_mask(padding_mask), -1e9)
            y = torch.bmm(scores.softmax(dim=-1), v)
            y = torch.cat(y.split(B, dim=0), dim=-1)
            return self.norm(x + self.W_o(y))

    torch.manual_seed(0)
    return BehaviorAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(3, 7, 32),), {"padding_mask": torch.arange(7)[None] >= torch.tensor([7, 3, 5])[:, None]}
