import torch
import torch.nn as nn
import torch.nn.functional as F


class RollingBufferAttention(nn.Module):
    """Sliding-window decoder attention with a ring buffer of ``window`` entries.

    ``step`` consumes one token. Slots are overwritten modulo ``window``, so the buffer is not in
    temporal order; rotary phases are applied before writing, and attention itself does not care
    about the order of the keys. ``forward`` is the parallel version of the same computation.
    """

    def __init__(self, dim=64, num_heads=4, window=16, max_batch=8, base=10000.0):
        super().__init__()
        self.h, self.d, self.window = num_heads, dim // num_heads, window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.register_buffer("inv_freq", base ** (-torch.arange(0, self.d, 2).float() / self.d), persistent=False)
        self.register_buffer("k_buf", torch.zeros(max_batch, num_heads, window, self.d), persistent=False)
        self.register_buffer("v_buf", torch.zeros(max_batch, num_heads, window, self.d), persistent=False)
        self.t = 0

    def reset(self):
        self.t = 0

    def _rope(self, x, pos):
        ang = pos.float()[:, None] * self.inv_freq
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        x1, x2 = x[..., 0::2], x[..., 1::2]
        return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)

    def _heads(self, x):
        b, n, _ = x.shape
        return self.qkv(x).view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4).unbind(0)

    def _merge(self, y):
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        q, k, v = self._heads(x)
        pos = torch.arange(x.size(1), device=x.device)
        q, k = self._rope(q, pos), self._rope(k, pos)
        dist = pos[:, None] - pos[None, :]
        mask = (dist >= 0) & (dist < self.window)
        return self._merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))

    @torch.no_grad()
    def step(self, x):
        """x: (batch, 1, dim)"""
        b = x.size(0)
        q, k, v = self._heads(x)
        pos = torch.tensor([self.t], device=x.device)
        q, k = self._rope(q, pos), self._rope(k, pos)
        slot = self.t % self.window
        self.k_buf[:b, :, slot] = k[:, :, 0]
        self.v_buf[:b, :, slot] = v[:, :, 0]
        self.t += 1
        filled = min(self.t, self.window)
        y = F.scaled_dot_product_attention(q, self.k_buf[:b, :, :filled], self.v_buf[:b, :, :filled])
        return self._merge(y)
