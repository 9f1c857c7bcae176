"""Tensors that get more rows with each step of a generation."""

from __future__ import annotations

import torch
from torch import Tensor


class Growing:
    """A tensor [B, ·, length, ·] that grows in length; its buffer is at most twice as long."""

    def __init__(self, first: Tensor) -> None:
        self._buffer, self.length, self.owned = first, first.shape[2], False
        self.nbytes = first.numel() * first.element_size()

    @property
    def tensor(self) -> Tensor:
        return self._buffer[:, :, : self.length]

    def append(self, more: Tensor) -> None:
        total = self.length + more.shape[2]
        if not self.owned or total > self._buffer.shape[2]:
            room = max(total, min(2 * self.length, self.length + 4096), 16)
            batch, heads, _, width = self._buffer.shape
            grown = self._buffer.new_empty(batch, heads, room, width)
            grown[:, :, : self.length] = self.tensor
            self._buffer, self.owned = grown, True
            self.nbytes = grown.numel() * grown.element_size()
        self._buffer.narrow(2, self.length, more.shape[2]).copy_(more)
        self.length = total

    def cut(self, count: int) -> None:
        """Remove the last `count` positions."""
        self.length -= count

    def of_beams(self, origin: Tensor | None) -> Tensor:
        """The positions of each beam, each from its origin [N, length]: [N, ·, length, ·]; None = as they are."""
        if origin is None:
            return self.tensor
        at = torch.arange(origin.shape[1], device=origin.device)
        return self.tensor[origin.clamp(min=0), :, at].transpose(1, 2)
