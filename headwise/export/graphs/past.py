"""`Past`: a cache whose tensors are inputs of a graph, and so are given instead of kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from headwise.export.graph import Value
from headwise.nn import Cache
from headwise.nn.cache_storage import Make

Pair = tuple[Tensor, Tensor]  # keys and values [B, G, S, D]


class Past(Cache):
    """What the layers of a stack made of the tokens before, and of a memory: a `Cache` for one call.

    Each layer appends to what it was given by joining tensors, which any tracer can follow with any number of tokens
    before, none too. `present` has the keys and values of all layers after the call.

    Args:
        past: of each layer's self-attention. No row is padded.
        memory: of each layer's cross-attention; none of a stack that reads no memory.
    """

    def __init__(self, past: Sequence[Pair], memory: Sequence[Pair] = ()) -> None:
        super().__init__()
        others: Sequence[Pair | None] = memory or [None] * len(past)
        self.layers = [PastLayer(own, other) for own, other in zip(past, others, strict=True)]

    def child(self, name: str) -> Cache:
        """ "layers.3" is that of the fourth layer."""
        return self.layers[int(name.rpartition(".")[2])]

    def bind(self, owner: nn.Module) -> None:
        """It is made for one call, so no other module can come to have it."""

    @property
    def length(self) -> int:
        """How many tokens were before."""
        return self.layers[0].length

    @property
    def present(self) -> Iterator[Tensor]:
        """The keys and the values of each layer."""
        for layer in self.layers:
            yield from layer.held


class PastLayer(Past):
    """That of one layer, for its self-attention and its cross-attention."""

    def __init__(self, held: Pair, read: Pair | None) -> None:
        Cache.__init__(self)
        self.held, self.read = held, read

    def child(self, name: str) -> Cache:
        return self

    @property
    def length(self) -> int:
        return self.held[0].shape[2]

    size = length

    @property
    def key_real(self) -> Tensor | None:
        return None

    def next_positions(self, count: int, real: Tensor | None = None, *, device: torch.device | str) -> Tensor:
        return torch.arange(self.length, self.length + count, device=device)

    def key_positions(self, *, device: torch.device | str) -> Tensor:
        return torch.arange(self.length, device=device)

    def append(self, *tensors: Tensor, real: Tensor | None = None) -> tuple[Tensor, ...]:
        keys, values = (torch.cat([old, new], 2) for old, new in zip(self.held, tensors, strict=True))
        self.held = (keys, values)
        return self.held

    def memory(self, key: Tensor, value: Tensor, make: Make) -> tuple[Tensor, ...]:
        assert self.read is not None
        return self.read


def pairs(tensors: Sequence[Tensor]) -> list[Pair]:
    """Keys and values that take turns, of each layer."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def values_of(prefix: str, layers: int, heads: int, length: str, width: int) -> tuple[Value, ...]:
    """The names of keys and values of all layers: [batch, heads, length, width] each."""
    axes = ("batch", heads, length, width)
    names = [f"{prefix}{what}_{layer}" for layer in range(layers) for what in ("keys", "values")]
    return tuple(Value(name, torch.float32, axes) for name in names)
