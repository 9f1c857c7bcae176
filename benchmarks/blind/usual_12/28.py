import torch
import torch.nn as nn


class WindowAttention(nn.Module):
    """Window attention with a learned relative position bias, for windows of any (Wh, Ww).

    Args:
        dim: number of channels.
        window_size: height and width of the window; they need not be equal.
        num_heads: number of heads.

    Input: (num_windows * B, Wh * Ww, dim); ``mask`` is additive, (num_windows, N, N), 0 or -inf-like.
    """

    def __init__(self, dim=32, window_size=(2, 4), num_heads=4, qkv_bias=True, attn_drop=0.0):
        super().__init__()
        self.window_size = window_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5

        wh, ww = window_size
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * wh - 1) * (2 * ww - 1), num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

        rows = torch.arange(wh).repeat_interleave(ww)
        cols = torch.arange(ww).repeat(wh)
        d_row = rows[:, None] - rows[None, :] + wh - 1
        d_col = cols[:, None] - cols[None, :] + ww - 1
        self.register_buffer("relative_position_index", d_row * (2 * ww - 1) + d_col)

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)

        bias = self.relative_position_bias_table[self.relative_position_index]
        attn = attn + bias.permute(2, 0, 1).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = self.attn_drop(attn.softmax(dim=-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))
