import torch
import torch.nn.functional as F
from torch import nn


class LocalCausalAttention(nn.Module):
    """Causal attention with a window, computed in blocks of ``window`` tokens.

    Each block looks at itself and at the block before it; inside these two blocks a query
    sees exactly the last ``window`` tokens, itself included. Sequences of any length are
    padded on the right to whole blocks. The padding lies in the future of every real query.
    """

    def __init__(self, dim=64, num_heads=4, window=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, dim * 3)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        w = self.window
        pad = -t % w

        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = (F.pad(z, (0, 0, 0, pad)) for z in (q, k, v))
        n = (t + pad) // w
        q, k, v = (z.reshape(b, self.num_heads, n, w, self.head_dim) for z in (q, k, v))

        def with_previous(z):
            previous = F.pad(z, (0, 0, 0, 0, 1, 0))[:, :, :-1]
            return torch.cat((previous, z), dim=3)

        k, v = with_previous(k), with_previous(v)

        q_pos = torch.arange(n * w, device=x.device).view(n, w)
        k_pos = torch.cat((q_pos - w, q_pos), dim=1)
        age = q_pos[:, :, None] - k_pos[:, None, :]
        blocked = (age < 0) | (age >= w) | (k_pos < 0)[:, None, :]

        scores = torch.einsum("bhnqd,bhnkd->bhnqk", q, k) / self.head_dim ** 0.5
        scores = scores.masked_fill(blocked, float("-inf"))
        y = torch.einsum("bhnqk,bhnkd->bhnqd", scores.softmax(dim=-1), v)

        y = y.reshape(b, self.num_heads, n * w, self.head_dim)[:, :, :t]
        return self.out(y.transpose(1, 2).reshape(b, t, d))
