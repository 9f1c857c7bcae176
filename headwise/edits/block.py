"""Attention knockout: queries that may not attend to some keys, or to no others (Geva et al. 2023)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.edits.edit import Edit, Examples, Heads, Steps
from headwise.edits.positions import Positions, check_positions, keys_of, queries_of
from headwise.edits.where import Where
from headwise.masks import Mask
from headwise.masks.extent import Rectangles, extent_of
from headwise.masks.tables import counts, look_up
from headwise.records.names import Choice


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Knockout(Mask):
    """All pairs but those of a blocked query and a blocked key in a chosen head. Its rectangles are exact."""

    chosen: Tensor  # bool [B, H]: in which examples and heads
    queries: Tensor  # bool [B, Q]
    keys: Tensor  # bool [B, K]

    @property
    def batch(self) -> int | None:
        """B, or None where all examples share the answer."""
        size = max(map(len, (self.chosen, self.queries, self.keys)))
        return size if size > 1 else None

    @property
    def heads(self) -> int | None:
        """H, or None where all heads share it."""
        return self.chosen.shape[1] if self.chosen.shape[1] > 1 else None

    @property
    def fixed_lengths(self) -> tuple[int | None, int | None]:
        """(Q, K)"""
        return self.queries.shape[1], self.keys.shape[1]

    def allows(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        """Whether the pair is not blocked."""
        blocked = look_up(self.chosen, b, h) & look_up(self.queries, b, q) & look_up(self.keys, b, k)
        return not blocked if isinstance(blocked, bool) else ~blocked

    def extents(self, r: Rectangles) -> Tensor:
        """NONE where all queries and all keys of a rectangle are blocked, ALL where no query or no key is."""
        of_queries, of_keys = self.remember(("counts",), lambda: (counts(self.queries), counts(self.keys)))
        queries, rows = of_queries[:, r.q_hi] - of_queries[:, r.q_lo], r.q_hi - r.q_lo
        keys, cols = of_keys[:, r.k_hi] - of_keys[:, r.k_lo], r.k_hi - r.k_lo
        cells = self.chosen.cpu().view(*self.chosen.shape, *[1] * r.q_lo.ndim)
        some = cells & ((queries > 0) & (keys > 0))[:, None]
        every = cells & ((queries == rows) & (keys == cols))[:, None]
        return extent_of(~every, ~some)


@dataclasses.dataclass(frozen=True, eq=False)
class Block(Edit):
    """What `block` and `only` make."""

    queries: Positions = dataclasses.field(default=None, kw_only=True)
    keys: Positions = dataclasses.field(default=None, kw_only=True)
    others: bool = dataclasses.field(default=False, kw_only=True)  # the keys that are not chosen

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("queries", "keys"):
            check_positions(getattr(self, name), f"{self.name}: {name}")

    @property
    def name(self) -> str:
        return "only" if self.others else "block"

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        """The call with another mask."""
        queries, keys = queries_of(self.queries, at, self.name), keys_of(self.keys, at, self.name)
        keys = ~keys if self.others else keys
        cells = self.cells(at)
        if not bool(((queries.any(1) & keys.any(1))[:, None] & cells).any()):
            return call
        knockout = Knockout(_shared(cells, (0, 1)), _shared(queries), _shared(keys)).aligned(*call.shape[2:])
        return dataclasses.replace(call, mask=knockout if call.mask is None else call.mask & knockout)


def block(
    where: Choice,
    *,
    queries: Positions = None,
    keys: Positions = None,
    heads: Heads = None,
    examples: Examples = None,
    steps: Steps = None,
) -> Block:
    """These queries may not attend to these keys; their other weights are normalised again. Geva et al. 2023.

    Args:
        where, heads, examples, steps: as for every edit (`Edit`).
        queries, keys: a position, counted from the first real token of each example, negative ones from the end of the
            prompt; a text, which means the tokens that it is made of wherever it stands as whole words; a slice or a
            range; a function (label, position) -> bool; several of these in a list. None = all. Texts and functions
            need `tokens=`, and mean tokens of the prompt.

    A query that may attend to no key any more gets an output of 0, and is counted (`changed.emptied`). A mask: the run
    stays on the kernels that it would run on.
    """
    return Block(where, queries=queries, keys=keys, heads=heads, examples=examples, steps=steps)


def only(
    where: Choice,
    *,
    queries: Positions = None,
    keys: Positions = None,
    heads: Heads = None,
    examples: Examples = None,
    steps: Steps = None,
) -> Block:
    """These queries may attend to these keys alone, as far as they could before. Otherwise as `block`."""
    return Block(where, queries=queries, keys=keys, heads=heads, examples=examples, steps=steps, others=True)


def _shared(x: Tensor, dims: tuple[int, ...] = (0,)) -> Tensor:
    """The flags with a size of 1 where all examples, or all heads, have the same."""
    for dim in dims:
        first = x.narrow(dim, 0, 1)
        x = first if torch.equal(x, first.expand_as(x)) else x
    return x
