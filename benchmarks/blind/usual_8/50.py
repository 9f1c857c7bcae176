import math

import torch
import torch.nn as nn


class StrictCausalAttention(nn.Module):
    """Causal attention block of PixelSNAIL.

    Pixels are generated in raster order and the input at a position is the very pixel that is
    to be predicted there. A query may therefore look only at *earlier* pixels, not at
    its own. The first pixel has nothing to look at and gets zeros.

    Args:
        in_channels: channels of the feature map
        channels: channels of the output
        n_head: number of heads
    """

    def __init__(self, in_channels=32, channels=32, n_head=4, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.dim_head = channels // n_head
        self.query = nn.Conv2d(in_channels, channels, 1)
        self.key = nn.Conv2d(in_channels, channels, 1)
        self.value = nn.Conv2d(in_channels, channels, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, _, height, width = x.shape
        n = height * width

        def heads(t):
            return t.view(batch, self.n_head, self.dim_head, n).transpose(2, 3)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))

        attn = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.dim_head)
        mask = torch.tril(torch.ones(n, n, dtype=torch.bool, device=x.device), diagonal=-1)
        attn = attn.masked_fill(~mask, -1e4)
        start_mask = torch.ones(n, 1, dtype=x.dtype, device=x.device)
        start_mask[0] = 0
        attn = self.dropout(torch.softmax(attn, dim=3) * start_mask)

        out = torch.matmul(attn, v)
        return out.transpose(2, 3).reshape(batch, self.n_head * self.dim_head, height, width)
