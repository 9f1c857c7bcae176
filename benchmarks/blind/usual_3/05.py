import torch
import torch.nn as nn


class SelfAttention2d(nn.Module):
    """Self attention layer of SAGAN (Zhang et al., 2018).

    The 1x1 convolutions f and g reduce the channels by 8. As in the paper the energies
    are not divided by sqrt(d), and the result is added to the input with a learned gate
    that starts at zero, so the layer is the identity at initialisation.
    """

    def __init__(self, in_channels=32, reduction=8):
        super().__init__()
        inner = max(in_channels // reduction, 1)
        self.query_conv = nn.Conv2d(in_channels, inner, kernel_size=1)
        self.key_conv = nn.Conv2d(in_channels, inner, kernel_size=1)
        self.value_conv = nn.Conv2d(in_channels, in_channels, kernel_size=1)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, return_attention=False):
        """
        x: (B, C, W, H)
        returns: self attention value + input feature, optionally with attention (B, N, N), N = W * H
        """
        b, c, width, height = x.size()
        n = width * height
        proj_query = self.query_conv(x).view(b, -1, n).permute(0, 2, 1)  # B, N, C'
        proj_key = self.key_conv(x).view(b, -1, n)                       # B, C', N
        energy = torch.bmm(proj_query, proj_key)
        attention = self.softmax(energy)
        proj_value = self.value_conv(x).view(b, -1, n)                   # B, C, N

        out = torch.bmm(proj_value, attention.permute(0, 2, 1))
        out = out.view(b, c, width, height)
        out = self.gamma * out + x
        if return_attention:
            return out, attention
        return out
