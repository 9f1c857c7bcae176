import torch
from torch import nn


class SelfAttention1d(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x):
        b, t, _ = x.shape

        def merge(z):
            # (b, t, heads * d) -> (b * heads, t, d)
            return z.reshape(b, t, self.heads, -1).transpose(1, 2).flatten(0, 1)

        q, k, v = map(merge, (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)))
        weights = torch.bmm(q * self.scale, k.transpose(1, 2)).softmax(dim=-1)
        out = torch.bmm(weights, v)
        out = out.view(b, self.heads, t, -1).transpose(1, 2).reshape(b, t, -1)
        return self.to_out(out)


class AlongAxis(nn.Module):
    """Brings one axis of a channels-last tensor next to the channels, folds the rest into the batch."""

    def __init__(self, axis, fn):
        super().__init__()
        self.axis = axis
        self.fn = fn

    def forward(self, x):
        x = x.movedim(self.axis, -2)
        shape = x.shape
        out = self.fn(x.reshape(-1, *shape[-2:]))
        return out.reshape(shape).movedim(-2, self.axis)


class AxialAttention(nn.Module):
    """Sum of one attention per spatial axis.

    Args:
        dim: channels.
        num_dimensions: number of spatial axes (2 for images, 3 for videos / volumes).
        heads, dim_head: per-axis attention, ``dim_head`` defaults to ``dim // heads``.
        dim_index: where the channels are, 1 for channels-first and -1 for channels-last input.
    """

    def __init__(self, dim=32, num_dimensions=2, heads=4, dim_head=None, dim_index=1):
        super().__init__()
        assert dim % heads == 0, "hidden dimension must be divisible by number of heads"
        dim_head = dim_head or dim // heads
        self.dim = dim
        self.total_dimensions = num_dimensions + 2
        self.dim_index = dim_index if dim_index > 0 else dim_index + self.total_dimensions
        self.axial_attentions = nn.ModuleList(
            AlongAxis(axis, SelfAttention1d(dim, heads, dim_head)) for axis in range(1, num_dimensions + 1)
        )

    def forward(self, x):
        assert x.ndim == self.total_dimensions, "input tensor does not have the correct number of dimensions"
        assert x.shape[self.dim_index] == self.dim, "input tensor does not have the correct input dimension"
        x = x.movedim(self.dim_index, -1)
        out = sum(attn(x) for attn in self.axial_attentions)
        return out.movedim(-1, self.dim_index)
