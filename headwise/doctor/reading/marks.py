"""Where every number of a forward comes from: marks that follow the tensors through the operations.

Every tensor has two integer tensors of its shape. `token` says which position of which example of which input a number
belongs to; `source` says which element of which matrix product (or input) it came from. Operations that move numbers
move the marks; elementwise operations pass them on; matrix products create new sources. So the meaning of every axis is
known at the end, whatever views, transposes and einsums led to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

UNKNOWN = -1  # no token: a constant
MIXED = -2  # several tokens

_INPUT, _EXAMPLE, _ELEMENT = 40, 20, 32  # bits


def token(which: int, shape: Sequence[int]) -> Tensor:
    """The tokens [B, N] of input number `which`."""
    batch, length = shape
    examples = torch.arange(batch)[:, None] << _EXAMPLE
    return (which << _INPUT) + examples + torch.arange(length)


def input_of(tokens: Tensor) -> Tensor:
    return torch.where(tokens < 0, tokens, tokens >> _INPUT)


def example_of(tokens: Tensor) -> Tensor:
    return torch.where(tokens < 0, tokens, (tokens >> _EXAMPLE) & ((1 << _EXAMPLE) - 1))


def position_of(tokens: Tensor) -> Tensor:
    return torch.where(tokens < 0, tokens, tokens & ((1 << _EXAMPLE) - 1))


def elements(seed: int, shape: Sequence[int]) -> Tensor:
    """The sources of the elements of seed number `seed`, which has this shape."""
    size = torch.Size(shape)
    return (seed << _ELEMENT) + torch.arange(size.numel()).reshape(size)


def seed_of(sources: Tensor) -> Tensor:
    return torch.where(sources < 0, sources, sources >> _ELEMENT)


def element_of(sources: Tensor) -> Tensor:
    return torch.where(sources < 0, sources, sources & ((1 << _ELEMENT) - 1))


@dataclasses.dataclass
class Marks:
    """What is known about one tensor."""

    token: Tensor
    source: Tensor
    live: bool = False  # whether it depends on the inputs
    names: frozenset[str] = frozenset()  # of the parameters that it depends on
    noise: bool = False  # whether it is random
    factor: float = 1.0  # the factor of the numbers since their source, or since a norm
    sum_of: tuple[int, tuple[int, ...]] | None = None  # the exponential that was summed, and over which dims
    exponential: int | None = None  # which exponential it is
    shift: Tensor | None = None  # what was just subtracted from whole rows, such as a maximum

    def seeds(self) -> list[int]:
        """The numbers of the seeds that its elements come from."""
        return [int(number) for number in seed_of(self.source).unique() if number >= 0]

    def move(self, change: Callable[[Tensor], Tensor]) -> Marks:
        return self.like(change(self.token), change(self.source))

    def like(self, token: Tensor, source: Tensor) -> Marks:
        return Marks(token, source, self.live, self.names, self.noise, self.factor)


def constant(shape: Sequence[int]) -> Marks:
    return Marks(torch.full(tuple(shape), UNKNOWN), torch.full(tuple(shape), UNKNOWN))


def merge(parts: Sequence[Marks], shape: Sequence[int]) -> Marks:
    """The marks of an elementwise result: those of the operand that was computed last; of equals, the first.

    Operands that depend on the inputs come first. A number that combines two tokens has several tokens.
    """
    shape = tuple(shape)
    names = frozenset[str]().union(*(x.names for x in parts))
    tokens, sources = (torch.full(shape, UNKNOWN) for _ in range(2))
    factor = 1.0
    for part in [x for x in parts if x.live] or parts:
        source, now = part.source.expand(shape), part.token.expand(shape)
        later = seed_of(source) > seed_of(sources)
        factor = part.factor if factor == 1.0 else factor
        differ = (tokens >= 0) & (now >= 0) & (tokens != now)
        tokens = torch.where(differ, MIXED, torch.where(later | (tokens == UNKNOWN), now, tokens))
        sources = torch.where(later, source, sources)
    return Marks(tokens, sources, any(x.live for x in parts), names, any(x.noise for x in parts), factor)


def one(tokens: Tensor, dim: int) -> Tensor:
    """Along a dim: the only token, or MIXED if there are several; constants do not count."""
    known = tokens != UNKNOWN
    top = tokens.masked_fill(tokens == MIXED, 1 << 62).amax(dim)
    low = tokens.masked_fill(~known, 1 << 62).amin(dim)
    return torch.where(known.any(dim), torch.where((low == top) & (top < 1 << 62), top, MIXED), UNKNOWN)


def tensors_in(arguments: Any) -> list[Tensor]:
    """The tensors among (nested) arguments, in order."""
    return [x for x in tree_leaves(arguments) if isinstance(x, Tensor)]
