import torch
import torch.nn as nn


class ColumnAttention(nn.Module):
    """Attention with everything on its side.

    Sequences are (batch, channels, length), as for Conv1d, and the score matrix
    has keys in rows and queries in columns, so a *column* sums to one.
    """

    def __init__(self, channels=32, heads=4):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Conv1d(channels, channels, 1)
        self.to_k = nn.Conv1d(channels, channels, 1)
        self.to_v = nn.Conv1d(channels, channels, 1)
        self.to_out = nn.Conv1d(channels, channels, 1)

    def forward(self, x, key_mask=None):
        """key_mask: (batch, length), True where a key may be used."""
        b, c, n = x.shape
        d = c // self.heads
        q = self.to_q(x).view(b, self.heads, d, n)
        k = self.to_k(x).view(b, self.heads, d, n)
        v = self.to_v(x).view(b, self.heads, d, n)
        s = k.transpose(2, 3) @ q / d ** 0.5
        if key_mask is not None:
            s = s.masked_fill(~key_mask[:, None, :, None], torch.finfo(s.dtype).min)
        a = s.softmax(dim=2)
        return self.to_out((v @ a).view(b, c, n))
