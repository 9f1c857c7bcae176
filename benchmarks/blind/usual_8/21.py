import torch
from torch import nn


class StreamingAttention(nn.Module):
    """Sliding-window attention for streaming inference.

    A query sees itself and the ``window - 1`` tokens before it. ``forward`` handles a whole
    sequence, ``step`` one token at a time with a ring buffer of ``window`` slots. Keys are
    rotated *before* they are stored, so the order of the slots does not matter.

    Call ``reset(batch_size)`` before the first ``step`` of a stream.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 16, theta: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        half = self.head_dim // 2
        self.register_buffer("inv_freq", theta ** (-torch.arange(half).float() / half), persistent=False)
        self._keys = self._values = None
        self._pos = 0

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angle = positions.float()[:, None] * self.inv_freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def _project(self, x: torch.Tensor, positions: torch.Tensor):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        return self._rotate(q, positions), self._rotate(k, positions), v

    def _attend(self, q, k, v, visible=None):
        scores = q @ k.transpose(-1, -2) * self.head_dim ** -0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        y = scores.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pos = torch.arange(x.size(1), device=x.device)
        q, k, v = self._project(x, pos)
        age = pos[:, None] - pos[None, :]
        return self._attend(q, k, v, (age >= 0) & (age < self.window))

    def reset(self, batch_size: int) -> None:
        w = self.qkv.weight
        shape = (batch_size, self.num_heads, self.window, self.head_dim)
        self._keys = torch.zeros(shape, dtype=w.dtype, device=w.device)
        self._values = torch.zeros(shape, dtype=w.dtype, device=w.device)
        self._pos = 0

    @torch.no_grad()
    def step(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 1, dim)"""
        pos = torch.tensor([self._pos], device=x.device)
        q, k, v = self._project(x, pos)
        slot = self._pos % self.window
        self._keys[:, :, slot] = k[:, :, 0]
        self._values[:, :, slot] = v[:, :, 0]
        self._pos += 1
        filled = min(self._pos, self.window)
        return self._attend(q, self._keys[:, :, :filled], self._values[:, :, :filled])
