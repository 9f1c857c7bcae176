import torch
import torch.nn as nn


class EfficientAttention(nn.Module):
    """Efficient attention with linear complexity (Shen et al., WACV 2021).

    Keys are normalised over the positions, queries over the channels, and the
    d_k x d_v context is computed first. There is no temperature.
    """

    def __init__(self, in_channels=64, key_channels=32, head_count=4, value_channels=64):
        super().__init__()
        self.key_channels = key_channels
        self.head_count = head_count
        self.value_channels = value_channels
        self.keys = nn.Conv2d(in_channels, key_channels, 1)
        self.queries = nn.Conv2d(in_channels, key_channels, 1)
        self.values = nn.Conv2d(in_channels, value_channels, 1)
        self.reprojection = nn.Conv2d(value_channels, in_channels, 1)

    def forward(self, input_):
        n, _, h, w = input_.size()
        d_k = self.key_channels // self.head_count
        d_v = self.value_channels // self.head_count
        keys = self.keys(input_).reshape(n, self.head_count, d_k, h * w)
        queries = self.queries(input_).reshape(n, self.head_count, d_k, h * w)
        values = self.values(input_).reshape(n, self.head_count, d_v, h * w)

        keys = keys.softmax(dim=3)
        queries = queries.softmax(dim=2)
        context = keys @ values.transpose(2, 3)
        attended = context.transpose(2, 3) @ queries

        attended = attended.reshape(n, self.value_channels, h, w)
        return self.reprojection(attended) + input_
