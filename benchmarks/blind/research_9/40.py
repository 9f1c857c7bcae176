import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm


class SelfAttention2d(nn.Module):
    """Self attention layer of SAGAN.

    One head, queries and keys of width C/8, no 1/sqrt(d), no output projection; ``gamma`` starts at zero so
    that the layer is the identity at the beginning of the training. All as in the paper's reference code.
    """

    def __init__(self, in_dim=64, reduction=8):
        super().__init__()
        self.query_conv = spectral_norm(nn.Conv2d(in_dim, in_dim // reduction, 1, bias=False))
        self.key_conv = spectral_norm(nn.Conv2d(in_dim, in_dim // reduction, 1, bias=False))
        self.value_conv = spectral_norm(nn.Conv2d(in_dim, in_dim, 1, bias=False))
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        """
            inputs :
                x : input feature maps (B X C X W X H)
            returns :
                out : self attention value + input feature
                attention: B X N X N (N is Width*Height)
        """
        b, c, w, h = x.size()
        proj_query = self.query_conv(x).view(b, -1, w * h).permute(0, 2, 1)  # B X N X C'
        proj_key = self.key_conv(x).view(b, -1, w * h)  # B X C' X N
        energy = torch.bmm(proj_query, proj_key)
        attention = energy.softmax(dim=-1)
        proj_value = self.value_conv(x).view(b, -1, w * h)  # B X C X N

        out = torch.bmm(proj_value, attention.permute(0, 2, 1)).view(b, c, w, h)
        out = self.gamma * out + x
        return out, attention
