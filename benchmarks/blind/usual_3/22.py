import torch
from einops import rearrange
from torch import einsum, nn


class CyclicShift(nn.Module):
    def __init__(self, displacement):
        super().__init__()
        self.displacement = displacement

    def forward(self, x):
        return torch.roll(x, shifts=(self.displacement, self.displacement), dims=(1, 2))


def create_mask(window_size, displacement, upper_lower, left_right):
    mask = torch.zeros(window_size ** 2, window_size ** 2)
    if upper_lower:
        mask[-displacement * window_size:, :-displacement * window_size] = float("-inf")
        mask[:-displacement * window_size, -displacement * window_size:] = float("-inf")
    if left_right:
        mask = rearrange(mask, "(h1 w1) (h2 w2) -> h1 w1 h2 w2", h1=window_size, h2=window_size)
        mask[:, -displacement:, :, :-displacement] = float("-inf")
        mask[:, :-displacement, :, -displacement:] = float("-inf")
        mask = rearrange(mask, "h1 w1 h2 w2 -> (h1 w1) (h2 w2)")
    return mask


class ShiftedWindowAttention(nn.Module):
    """Window attention on feature maps (b, h, w, c), optionally with shifted windows.

    The map keeps its place: position (i, j) of the output belongs to position (i, j) of the input.
    """

    def __init__(self, dim=32, heads=4, head_dim=8, window_size=4, shifted=True):
        super().__init__()
        inner_dim = head_dim * heads
        self.heads = heads
        self.scale = head_dim ** -0.5
        self.window_size = window_size
        self.shifted = shifted

        if shifted:
            displacement = window_size // 2
            self.cyclic_shift = CyclicShift(-displacement)
            self.cyclic_back_shift = CyclicShift(-displacement)
            self.register_buffer("upper_lower_mask", create_mask(window_size, displacement, True, False))
            self.register_buffer("left_right_mask", create_mask(window_size, displacement, False, True))

        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.pos_embedding = nn.Parameter(torch.randn(window_size ** 2, window_size ** 2) * 0.02)
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x):
        if self.shifted:
            x = self.cyclic_shift(x)

        _, n_h, n_w, _ = x.shape
        nw_h, nw_w = n_h // self.window_size, n_w // self.window_size

        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(
            lambda t: rearrange(
                t, "b (nw_h w_h) (nw_w w_w) (h d) -> b h (nw_h nw_w) (w_h w_w) d",
                h=self.heads, w_h=self.window_size, w_w=self.window_size,
            ),
            qkv,
        )

        dots = einsum("b h w i d, b h w j d -> b h w i j", q, k) * self.scale
        dots = dots + self.pos_embedding
        if self.shifted:
            dots[:, :, -nw_w:] += self.upper_lower_mask
            dots[:, :, nw_w - 1::nw_w] += self.left_right_mask

        attn = dots.softmax(dim=-1)
        out = einsum("b h w i j, b h w j d -> b h w i d", attn, v)
        out = rearrange(
            out, "b h (nw_h nw_w) (w_h w_w) d -> b (nw_h w_h) (nw_w w_w) (h d)",
            nw_h=nw_h, nw_w=nw_w, w_h=self.window_size, w_w=self.window_size,
        )
        out = self.to_out(out)

        if self.shifted:
            out = self.cyclic_back_shift(out)
        return out
