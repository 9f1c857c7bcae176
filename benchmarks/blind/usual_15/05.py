import torch
from torch import nn


class QuietAttention(nn.Module):
    """Bidirectional self-attention whose heads may abstain.

    The weights are exp(s_j) / (1 + sum_k exp(s_k)), so a row may add up to
    less than one. The extra one in the denominator is written as an
    additional logit fixed at zero that has no value.

    pad_mask: bool, (batch, length), True at padding.
    """

    def __init__(self, dim=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, pad_mask=None):
        b, n, d = x.shape
        q, k, v = (
            self.qkv(x)
            .view(b, n, 3, self.num_heads, self.head_dim)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        scores = q @ k.transpose(-1, -2) / self.head_dim ** 0.5
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask[:, None, None, :], float("-inf"))
        nothing = scores.new_zeros(b, self.num_heads, n, 1)
        weights = torch.cat([nothing, scores], dim=-1).softmax(dim=-1)[..., 1:]
        y = weights @ v
        return self.out(y.transpose(1, 2).reshape(b, n, d))
