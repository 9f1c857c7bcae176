"""Both layers of the gate on the attended language are zero-initialised, so gate and attention never get a gradient.

yz93/LAVT-RIS #25 (2023)
https://github.com/yz93/LAVT-RIS/issues/25
"""
import torch
from torch import nn


class PWAM(nn.Module):
    """Pixel-word attention: every pixel attends over the words, the result is multiplied with the visual features."""

    def __init__(self, dim, l_in_channels, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.f_query = nn.Linear(dim, dim)
        self.f_key = nn.Linear(l_in_channels, dim)
        self.f_value = nn.Linear(l_in_channels, dim)
        self.vis_project = nn.Linear(dim, dim)
        self.W = nn.Linear(dim, dim)

    def forward(self, x, l, l_mask):
        # x: (B, H*W, dim), l: (B, N_l, l_in_channels), l_mask: (B, N_l)
        split = lambda t: t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        query, key, value = split(self.f_query(x)), split(self.f_key(l)), split(self.f_value(l))
        sim_map = torch.matmul(query, key.transpose(-1, -2)) * query.shape[-1] ** -0.5
        sim_map = sim_map + (1e4 * l_mask - 1e4)[:, None, None, :]
        out = torch.matmul(sim_map.softmax(dim=-1), value).transpose(1, 2).flatten(2)
        return torch.relu(self.vis_project(x)) * self.W(out)


class _MMBasicLayerBase(nn.Module):
    """Fuses the language into the visual features of one stage: x + gate(x_residual) * x_residual."""

    def __init__(self, dim, l_in_channels, num_heads_fusion=1):
        super().__init__()
        self.fusion = PWAM(dim, l_in_channels, num_heads_fusion)
        self.res_gate = nn.Sequential(
            nn.Linear(dim, dim, bias=False),
            nn.ReLU(),
            nn.Linear(dim, dim, bias=False),
            nn.Tanh()
        )
        self.init_gate()

    def forward(self, x, l, l_mask):
        """ Forward function.

        Args:
            x: Input feature, tensor size (B, H*W, C).
            l: word features, tensor size (B, N_l, C_l).
            l_mask: tensor size (B, N_l), 1 for words and 0 for padding.
        """
        x_residual = self.fusion(x, l, l_mask)
        # apply a gate on the residual
        return x + (self.res_gate(x_residual) * x_residual)


def broken() -> nn.Module:
    class MMBasicLayer(_MMBasicLayerBase):
        def init_gate(self):
            # initialize the gate to 0
            nn.init.zeros_(self.res_gate[0].weight)
            nn.init.zeros_(self.res_gate[2].weight)

    torch.manual_seed(0)
    return MMBasicLayer(32, 24, num_heads_fusion=2)


def fixed() -> nn.Module:
    class MMBasicLayer(_MMBasicLayerBase):
        def init_gate(self):
            nn.init.trunc_normal_(self.res_gate[0].weight, std=.02)
            nn.init.trunc_normal_(self.res_gate[2].weight, std=.02)

    torch.manual_seed(0)
    return MMBasicLayer(32, 24, num_heads_fusion=2)


def example():
    g = torch.Generator().manual_seed(49)
    x, l = torch.randn(2, 16, 32, generator=g), torch.randn(2, 6, 24, generator=g)
    l_mask = torch.ones(2, 6)
    l_mask[1, 4:] = 0
    return (x, l, l_mask), {}
