import torch
import torch.nn as nn


class SpatialSelfAttention(nn.Module):
    """Self-attention layer of SAGAN for feature maps (B, C, H, W).

    Single head, no scale, keys and queries reduced to C // 8 channels. ``gamma`` starts at
    zero so that the layer is the identity at first and learns how much attention to add.
    """

    def __init__(self, in_dim=64, reduction=8):
        super().__init__()
        self.query_conv = nn.Conv2d(in_dim, in_dim // reduction, kernel_size=1)
        self.key_conv = nn.Conv2d(in_dim, in_dim // reduction, kernel_size=1)
        self.value_conv = nn.Conv2d(in_dim, in_dim, kernel_size=1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        b, c, h, w = x.size()
        f = self.key_conv(x).flatten(2)                  # B, C', N
        g = self.query_conv(x).flatten(2)                # B, C', N
        s = torch.bmm(f.transpose(1, 2), g)              # B, N (keys), N (queries)
        beta = torch.softmax(s, dim=1)                   # every column sums to one
        o = torch.bmm(self.value_conv(x).flatten(2), beta)
        return self.gamma * o.view(b, c, h, w) + x
