import torch
import torch.nn as nn
import torch.nn.functional as F


class LookBackAttention(nn.Module):
    """Causal local attention computed bucket by bucket.

    The sequence is cut into windows of ``window`` tokens; a query sees the earlier tokens of
    its own window, itself, and the whole previous window. How far a token can look back
    hence depends on its place in the window (between ``window`` and ``2 * window - 1``).

    Keys are the values: one projection serves both.
    """

    def __init__(self, dim=64, heads=4, window=8):
        super().__init__()
        self.heads = heads
        self.window = window
        self.dim_head = dim // heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        w = self.window
        pad = -n % w
        x = F.pad(x, (0, 0, 0, pad))
        m = (n + pad) // w

        q = self.to_q(x).view(b, m, w, self.heads, self.dim_head)
        kv = self.to_kv(x).view(b, m, w, self.heads, self.dim_head)
        previous = F.pad(kv, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1]
        kv = torch.cat([previous, kv], dim=2)

        pos = torch.arange(m * w, device=x.device).view(m, w)
        k_pos = torch.cat([F.pad(pos, (0, 0, 1, 0), value=-1)[:-1], pos], dim=1)
        hidden = (k_pos[:, None, :] > pos[:, :, None]) | (k_pos[:, None, :] < 0)

        sim = torch.einsum("bmihd,bmjhd->bmhij", q, kv) * self.dim_head ** -0.5
        sim = sim.masked_fill(hidden[None, :, None], float("-inf"))
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bmhij,bmjhd->bmihd", attn, kv)
        out = out.reshape(b, m * w, d)[:, :n]
        return self.to_out(out)
