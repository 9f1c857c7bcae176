import torch
import torch.nn as nn


class SelfAttn2d(nn.Module):
    """ Self attention layer for the generator and the discriminator """

    def __init__(self, in_dim=32, reduction=8):
        super(SelfAttn2d, self).__init__()
        self.chanel_in = in_dim
        hidden = max(in_dim // reduction, 1)
        self.query_conv = nn.Conv2d(in_channels=in_dim, out_channels=hidden, kernel_size=1)
        self.key_conv = nn.Conv2d(in_channels=in_dim, out_channels=hidden, kernel_size=1)
        self.value_conv = nn.Conv2d(in_channels=in_dim, out_channels=in_dim, kernel_size=1)
        self.gamma = nn.Parameter(torch.full((1,), 0.1))
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        """
            inputs :
                x : input feature maps (B x C x H x W)
            returns :
                out : attention value + input feature
                attention : B x N x N (N is H * W), one row per query position
        """
        m_batchsize, C, height, width = x.size()
        n = height * width
        proj_query = self.query_conv(x).view(m_batchsize, -1, n).permute(0, 2, 1)  # B x N x C'
        proj_key = self.key_conv(x).view(m_batchsize, -1, n)  # B x C' x N
        energy = torch.bmm(proj_query, proj_key)
        attention = self.softmax(energy)
        proj_value = self.value_conv(x).view(m_batchsize, -1, n)  # B x C x N

        out = torch.bmm(proj_value, attention)
        out = out.view(m_batchsize, C, height, width)

        out = self.gamma * out + x
        return out, attention
