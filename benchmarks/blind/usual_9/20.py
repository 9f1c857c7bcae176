import torch
from torch import nn


class RollingWindowAttention(nn.Module):
    """Sliding-window attention with a ring buffer of ``window`` key/value slots.

    A query at position i sees the keys i - window + 1 .. i. While decoding, the key of position p goes to slot
    p % window and overwrites the one that just left the window. Keys are rotated with their absolute position
    before they are stored, so the order of the slots does not matter to the softmax.
    """

    def __init__(self, dim=128, num_heads=4, window=8, rope_theta=10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.scale = self.head_dim ** -0.5
        inv_freq = rope_theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def new_cache(self, batch_size, device=None, dtype=None):
        shape = (batch_size, self.num_heads, self.window, self.head_dim)
        return {
            "k": torch.zeros(shape, device=device, dtype=dtype),
            "v": torch.zeros(shape, device=device, dtype=dtype),
            "pos": 0,
        }

    def rotate(self, x, start):
        positions = torch.arange(start, start + x.size(2), device=x.device).float()
        angles = positions[:, None] * self.inv_freq.float()[None, :]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def project(self, x, start):
        b, t, _ = x.shape
        q, k, v = (
            proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.rotate(q, start), self.rotate(k, start), v

    def merge(self, y):
        b, _, t, _ = y.shape
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))

    def step(self, x, cache):
        """x: (batch, 1, dim); updates ``cache`` in place."""
        pos = cache["pos"]
        q, k, v = self.project(x, pos)
        slot = pos % self.window
        cache["k"][:, :, slot] = k[:, :, 0]
        cache["v"][:, :, slot] = v[:, :, 0]
        cache["pos"] = pos + 1

        filled = min(pos + 1, self.window)
        keys, values = cache["k"][:, :, :filled], cache["v"][:, :, :filled]
        weights = torch.softmax(q @ keys.transpose(-1, -2) * self.scale, dim=-1)
        return self.merge(weights @ values)

    def forward(self, x, cache=None):
        if cache is not None:
            return torch.cat([self.step(x[:, i : i + 1], cache) for i in range(x.size(1))], dim=1)

        t = x.size(1)
        q, k, v = self.project(x, 0)
        idx = torch.arange(t, device=x.device)
        distance = idx[:, None] - idx[None, :]
        visible = (distance >= 0) & (distance < self.window)
        scores = (q @ k.transpose(-1, -2) * self.scale).masked_fill(~visible, float("-inf"))
        return self.merge(torch.softmax(scores, dim=-1) @ v)
