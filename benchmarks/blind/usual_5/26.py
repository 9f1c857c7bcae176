import torch
import torch.nn as nn


class StrictPastAttention(nn.Module):
    """Summary of the recent past, used as the context of a next-step density model.

    Position t looks at positions t - window ... t - 1 and never at itself: its own
    value is what the caller predicts. A learned null key/value is always available,
    so the first position has something to attend to.
    """

    def __init__(self, dim=96, num_heads=4, window=12):
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.d = dim // num_heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.null_kv = nn.Parameter(torch.randn(2, num_heads, 1, self.d) * 0.02)
        self.out = nn.Linear(dim, dim)
        # queries come from the step before, so that x_t doesn't enter at all
        self.start = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x):
        b, t, c = x.shape
        shifted = torch.cat([self.start.expand(b, -1, -1), x[:, :-1]], dim=1)
        q = self.q(shifted).view(b, t, self.num_heads, self.d).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.num_heads, self.d).permute(2, 0, 3, 1, 4)
        null_k, null_v = self.null_kv[:, None].expand(-1, b, -1, -1, -1)
        k = torch.cat([null_k, k], dim=2)
        v = torch.cat([null_v, v], dim=2)

        step = torch.arange(t, device=x.device)
        lag = step[:, None] - step[None, :]
        allowed = (lag >= 1) & (lag <= self.window)
        allowed = torch.cat([allowed.new_ones(t, 1), allowed], dim=1)

        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.d ** -0.5
        sim = sim.masked_fill(~allowed, -torch.finfo(sim.dtype).max)
        y = torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        return self.out(y.transpose(1, 2).reshape(b, t, c))
