"""`KeyValues`: a cache of the keys and values of every layer, for texts of different lengths that join and leave.

Dimension letters: L layers, N texts, S slots, w hypotheses of each text, G heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SPARE_SLOTS = 32


class KeyValues:
    """A cache of keys and values [L, N, S, w, G, D], with one slot per token, from slot 0.

    The numbers in the slots after the end of a text are finite. The buffers have room for more texts and more slots
    than are used, and double when they are full.

    Args:
        layers, width, heads, dim: L, w, G, D.
        like: a tensor with their dtype and device.
    """

    def __init__(self, layers: int, width: int, heads: int, dim: int, like: Tensor) -> None:
        self.keys = like.new_zeros(layers, 0, 0, width, heads, dim)
        self.values = like.new_zeros(layers, 0, 0, width, heads, dim)

    @property
    def slots(self) -> int:
        """S, the number of slots for which there is room."""
        return self.keys.shape[2]

    def make_room(self, texts: int, slots: int) -> None:
        """Make room for `texts` texts of `slots` slots each."""
        layers, had, held, *rest = self.keys.shape
        if texts <= had and slots <= held:
            return
        room = had if texts <= had else max(texts, 2 * had)
        depth = held if slots <= held else max(slots + SPARE_SLOTS, 2 * held)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(layers, room, depth, *rest)
            new[:, :had, :held] = old
            setattr(self, name, new)

    def clear(self, first: int, past: int) -> None:
        """Set texts `first` to `past` - 1 to 0 before others use their room: a NaN left there would pass every mask."""
        self.keys[:, first:past].zero_()
        self.values[:, first:past].zero_()

    def write(self, layer: int, k_NwGD: Tensor, v_NwGD: Tensor, slots_N: Tensor) -> None:
        """Write the keys and values of one more token of each hypothesis of the first N texts, at slots `slots_N`."""
        texts = torch.arange(len(slots_N), device=slots_N.device)
        self.keys[layer][texts, slots_N] = k_NwGD
        self.values[layer][texts, slots_N] = v_NwGD

    def read(self, layer: int, texts: int, slots: int) -> tuple[Tensor, Tensor]:
        """Return the keys and the values, [N, G, S · w, D] each, of the first N = `texts` texts, S = `slots` slots."""
        k, v = (x[layer, :texts, :slots].flatten(1, 2).transpose(1, 2) for x in (self.keys, self.values))
        return k, v

    def move(self, order: Sequence[int], slots: int) -> None:
        """Copy the old text order[i], with its first `slots` slots, to index i, unless the index is the same."""
        for to, out_of in enumerate(order):
            if to != out_of:
                self.keys[:, to, :slots] = self.keys[:, out_of, :slots]
                self.values[:, to, :slots] = self.values[:, out_of, :slots]
