"""`KeyValues`: the keys and values of every layer, of texts that differ in length and come and go.

Dimension letters: L layers, N texts, G heads, S slots, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SPARE_SLOTS = 32


class KeyValues:
    """Keys and values [L, N, G, S, D]; those of a text begin at slot 0, and what lies behind its last one is finite.

    Buffers have room for more texts and more slots, and double when it is used up.

    Args:
        layers, heads, dim: L, G, D.
        like: a tensor with their dtype and device.
    """

    def __init__(self, layers: int, heads: int, dim: int, like: Tensor) -> None:
        self.keys = like.new_zeros(layers, 0, heads, 0, dim)
        self.values = like.new_zeros(layers, 0, heads, 0, dim)

    def make_room(self, texts: int, slots: int) -> None:
        """Room for so many texts of so many slots."""
        layers, had, heads, held, dim = self.keys.shape
        if texts <= had and slots <= held:
            return
        room = had if texts <= had else max(texts, 2 * had)
        depth = held if slots <= held else max(slots + SPARE_SLOTS, 2 * held)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(layers, room, heads, depth, dim)
            new[:, :had, :, :held] = old
            setattr(self, name, new)

    def clear(self, text: int) -> None:
        """Before another text takes this place: a NaN that is left there would reach it past every mask."""
        self.keys[:, text].zero_()
        self.values[:, text].zero_()

    def write(self, layer: int, k_NGD: Tensor, v_NGD: Tensor, slots_N: Tensor) -> None:
        """One more token of each of the first N texts, at its slot."""
        texts = torch.arange(len(slots_N), device=slots_N.device)
        self.keys[layer][texts, :, slots_N] = k_NGD
        self.values[layer][texts, :, slots_N] = v_NGD

    def read(self, layer: int, texts: int, slots: int) -> tuple[Tensor, Tensor]:
        """Keys and values [N, G, S, D] of the first texts."""
        return self.keys[layer, :texts, :, :slots], self.values[layer, :texts, :, :slots]

    def follow(self, parents_Nw: Tensor, slots: int) -> None:
        """Hypothesis j of a text goes on from its hypothesis parents[j]; each of its w has G / w heads."""
        texts, width = parents_Nw.shape
        own = torch.arange(width, device=parents_Nw.device)
        text, to = (parents_Nw != own).nonzero(as_tuple=True)
        if not len(text):
            return
        into, out_of = text * width + to, text * width + parents_Nw[text, to]
        for x in (self.keys, self.values):
            for layer in x:
                rows = layer[:texts].view(texts * width, -1, *layer.shape[2:])[:, :, :slots]
                rows[into] = rows[out_of]

    def move(self, order: Sequence[int]) -> None:
        """Text i becomes what text order[i] was; only those move that stand elsewhere."""
        for to, out_of in enumerate(order):
            if to != out_of:
                self.keys[:, to] = self.keys[:, out_of]
                self.values[:, to] = self.values[:, out_of]
