"""`Past`: a cache whose tensors are inputs of a graph. `Reading`: runs a decoder's graph with such a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from headwise.graphs.graph import Value
from headwise.graphs.session import Session
from headwise.nn import Cache
from headwise.nn.cache_storage import Make

Pair = tuple[Tensor, Tensor]  # keys and values, each [B, G, S, D]
PAST = "past_"  # the prefix of inputs that were outputs of the previous step


class Past(Cache):
    """A `Cache` for one call: keys and values of the previous tokens, and of a memory, for all layers.

    Each layer concatenates its past tensors and its new tensors, which any tracer can follow for any number of previous
    tokens, including 0. After the call, `present` has the keys and values of all layers.

    Args:
        past: the keys and values of previous tokens, for each layer's self-attention. No row is padded.
        memory: the keys and values for each layer's cross-attention; () for a stack without a memory.
    """

    def __init__(self, past: Sequence[Pair], memory: Sequence[Pair] = ()) -> None:
        super().__init__()
        others: Sequence[Pair | None] = memory or [None] * len(past)
        self.layers = [PastLayer(own, other) for own, other in zip(past, others, strict=True)]
        self._length = self.layers[0].length

    def child(self, name: str) -> Cache:
        """Return the cache of one layer; `name` is, for example, "layers.3" for the fourth layer."""
        return self.layers[int(name.rpartition(".")[2])]

    def bind(self, owner: nn.Module) -> None:
        """Do nothing: this cache is made for one call, so no other module can use it."""

    @property
    def present(self) -> Iterator[Tensor]:
        """Yield the keys and then the values of each layer, with the tokens that this call has added."""
        for layer in self.layers:
            yield from layer.held


class PastLayer(Past):
    """The cache of one layer, used by its self-attention (which appends tokens) and by its cross-attention."""

    def __init__(self, held: Pair, read: Pair | None) -> None:
        Cache.__init__(self)
        self.read = read
        self._hold(held)

    def _hold(self, held: Pair) -> None:
        self.held = held
        self._length = held[0].shape[2]
        self._seen = (self._length, None)

    def child(self, name: str) -> Cache:
        return self

    @property
    def size(self) -> int:
        return self._length

    def append_held(self, *tensors: Tensor, real: Tensor | None = None) -> Pair:
        keys, values = (torch.cat([old, new], 2) for old, new in zip(self.held, tensors, strict=True))
        self._hold((keys, values))
        return self.held

    def memory(self, key: Tensor, value: Tensor, make: Make) -> tuple[Tensor, ...]:
        assert self.read is not None
        return self.read


def pairs(tensors: Sequence[Tensor]) -> list[Pair]:
    """Return pairs (keys, values) from a flat list in which keys and values alternate."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def make_values(prefix: str, layers: int, heads: int, length: str, width: int) -> tuple[Value, ...]:
    """Describe each layer's keys and values as `Value`s (name, dtype, axes): [batch, heads, length, width]."""
    axes = ("batch", heads, length, width)
    names = [f"{prefix}{what}_{layer}" for layer in range(layers) for what in ("keys", "values")]
    return tuple(Value(name, torch.float32, axes) for name in names)


class Reading:
    """Runs a decoder's graph step by step, and keeps the past (keys and values of the tokens so far) between steps.

    Args:
        decoder: the loaded graph. Its inputs are ids, inputs that are the same in every step, and a past; its outputs
            are logits and the past of the next step.
        given: the inputs that are the same in every step, by name.
    """

    def __init__(self, decoder: Session, given: dict[str, Tensor]) -> None:
        names = [value.name for value in decoder.inputs]
        self.names = [name for name in names if name.startswith(PAST)]
        self._inputs = names
        self._run = decoder.giving("logits", *(name.removeprefix(PAST) for name in self.names))
        self._empty = {value.name: value for value in decoder.inputs if value.name in self.names}
        self.past: list[Tensor] = []
        self.given = given

    def read(self, ids: Tensor) -> Tensor:
        """Run the graph on the next tokens [rows, S]. Return logits [rows, S, V] of the token after each of these."""
        past = self.past or [
            torch.empty((len(ids), value.axes[1], 0, value.axes[3]), dtype=value.dtype)  # type: ignore[arg-type]
            for value in self._empty.values()
        ]
        known = self.given | dict(zip(self.names, past, strict=True))
        logits, *self.past = self._run(ids, *(known[name] for name in self._inputs[1:]))
        return logits

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        """Let row i continue from row order[i]. `same_sources`: both have the same constant inputs, which then stay."""
        self.past = [each[order] for each in self.past]
        if not same_sources:
            self.given = {name: each[order] for name, each in self.given.items()}
