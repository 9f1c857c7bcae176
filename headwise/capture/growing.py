"""Tensors that get more positions with each step of a generation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Empty = Callable[[torch.Size, torch.dtype], Tensor]


class Growing:
    """A tensor [B, ·, length, ·] to which positions are appended; its buffer in memory is at most twice as long.

    `empty` is a function that makes a buffer of a shape and dtype on the disk; None = the buffer is in memory, and its
    bytes count in `nbytes`.
    """

    def __init__(self, first: Tensor, empty: Empty | None = None) -> None:
        self._buffer, self.length, self.owned = first, first.shape[2], False
        self._empty = empty
        self.nbytes = 0 if empty else first.nbytes

    @property
    def tensor(self) -> Tensor:
        return self._buffer[:, :, : self.length]

    def append(self, more: Tensor) -> None:
        total = self.length + more.shape[2]
        if not self.owned or total > self._buffer.shape[2]:
            batch, heads, _, width = self._buffer.shape
            if self._empty is None:
                room = max(total, min(2 * self.length, self.length + 4096), 16)
                grown = self._buffer.new_empty(batch, heads, room, width)
                self.nbytes = grown.nbytes
            else:  # the disk has room, and each of its bytes is written a few times in all
                grown = self._empty(torch.Size((batch, heads, max(total, 2 * self.length), width)), self._buffer.dtype)
            grown[:, :, : self.length] = self.tensor
            self._buffer, self.owned = grown, True
        self._buffer.narrow(2, self.length, more.shape[2]).copy_(more)
        self.length = total

    def cut(self, count: int) -> None:
        """Remove the last `count` positions."""
        self.length -= count

    def of_beams(self, origin: Tensor | None) -> Tensor:
        """Return the positions of N beams, [N, ·, length, ·].

        `origin` [N, length]: the example from which each position of a beam comes; None = return the tensor itself.
        """
        if origin is None:
            return self.tensor
        at = torch.arange(origin.shape[1], device=origin.device)
        return self.tensor[origin.clamp(min=0), :, at].transpose(1, 2)
