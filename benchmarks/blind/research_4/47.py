import torch
import torch.nn as nn


class DirectionalAlibiAttention(nn.Module):
    """Bidirectional encoder attention with ALiBi, split by direction.

    A plain |i - j| penalty cannot tell left from right. Here the first half of the heads looks only to the left and
    the second half only to the right (both see the position itself), each half with the full set of slopes. Masks
    that look causal are therefore per head; the layer as a whole sees the entire input.

    Args:
        dim: model width.
        num_heads: number of heads, even.
    """

    def __init__(self, dim=128, num_heads=8, dropout=0.0):
        super().__init__()
        assert num_heads % 2 == 0 and dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.w_qkv = nn.Linear(dim, 3 * dim)
        self.w_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        half = num_heads // 2
        slopes = 2.0 ** (-8.0 * torch.arange(1, half + 1) / half)
        self.register_buffer("slopes", slopes, persistent=False)

    def _bias(self, t, device, dtype):
        pos = torch.arange(t, device=device)
        rel = pos[None, :] - pos[:, None]
        penalty = -self.slopes[:, None, None].to(dtype) * rel.abs().to(dtype)
        left = penalty.masked_fill(rel > 0, float("-inf"))
        right = penalty.masked_fill(rel < 0, float("-inf"))
        return torch.cat([left, right], dim=0)

    def forward(self, x, pad=None):
        """``pad``: bool [B, T], True at padding (as in ``nn.MultiheadAttention``). Outputs there are zero."""
        b, t, c = x.shape
        q, k, v = self.w_qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / self.head_dim**0.5 + self._bias(t, x.device, x.dtype)
        if pad is not None:
            scores = scores.masked_fill(pad[:, None, None, :], torch.finfo(scores.dtype).min)
        attn = self.dropout(torch.softmax(scores, dim=-1))
        out = self.w_out((attn @ v).transpose(1, 2).reshape(b, t, c))
        if pad is not None:
            out = out.masked_fill(pad.unsqueeze(-1), 0.0)
        return out
