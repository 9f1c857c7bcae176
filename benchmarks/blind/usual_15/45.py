import torch
import torch.nn as nn


class BiasedMHA(nn.Module):
    """nn.MultiheadAttention with a symmetric linear distance penalty, for encoders.

    The penalty and the padding both go in as one float mask of shape
    (batch * heads, n, n), batch-major, which the wrapped module adds to the scores.

    pad: (batch, n), True for padding.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.mha = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)
        slopes = 2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads)
        self.register_buffer("slopes", slopes)

    def forward(self, x, pad=None):
        b, n, _ = x.shape
        i = torch.arange(n, device=x.device)
        dist = (i[:, None] - i[None, :]).abs().to(x.dtype)
        bias = (-self.slopes.to(x.dtype)[:, None, None] * dist).expand(b, -1, -1, -1)
        if pad is not None:
            bias = bias.masked_fill(pad[:, None, None, :], float("-inf"))
        out, _ = self.mha(x, x, x, attn_mask=bias.reshape(b * self.num_heads, n, n), need_weights=False)
        return out
