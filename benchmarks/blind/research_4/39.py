import torch
from torch import nn


class MultiHeadExternalAttention(nn.Module):
    """External attention on a feature map (Guo et al., 2021).

    Keys and values are two small learned memories which all images share; tokens never meet one another directly.
    The affinities are doubly normalised, as in the paper: a softmax over the *tokens* and then a division by the
    sum over the memory slots. There is no 1/sqrt(d), since the first normalisation works along another axis.

    Args:
        dim: channels of the map.
        num_heads: heads; all of them read the same memories.
        slots: size of the memories.
    """

    def __init__(self, dim=64, num_heads=4, slots=32):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.trans = nn.Conv2d(dim, dim, 1)
        self.mem_k = nn.Linear(head_dim, slots, bias=False)
        self.mem_v = nn.Linear(slots, head_dim, bias=False)
        self.proj = nn.Sequential(nn.Conv2d(dim, dim, 1, bias=False), nn.BatchNorm2d(dim))

    def forward(self, x):
        B, C, H, W = x.shape
        q = self.trans(x).view(B, self.num_heads, C // self.num_heads, H * W).transpose(-1, -2)
        attn = self.mem_k(q)
        attn = attn.softmax(dim=-2)
        attn = attn / (attn.sum(dim=-1, keepdim=True) + 1e-9)
        out = self.mem_v(attn).transpose(-1, -2).reshape(B, C, H, W)
        return torch.relu(x + self.proj(out))
