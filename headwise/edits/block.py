"""Attention knockout: queries that may not attend to some keys, or only to some keys (Geva et al. 2023)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from headwise.call import AttentionCall
from headwise.capture.layout import smallest
from headwise.edits.edit import Chosen
from headwise.edits.positions import OfPairs, Positions
from headwise.edits.where import Where
from headwise.masks import knockout, window
from headwise.masks.memo import read_contents
from headwise.records.names import Choice

if TYPE_CHECKING:
    from typing_extensions import Unpack


_ALL = window(None, None).owned()  # the cells that a call without a mask may attend to


@dataclasses.dataclass(frozen=True, eq=False)
class Block(OfPairs):
    """The edit that `block` and `only` make."""

    others: bool = dataclasses.field(default=False, kw_only=True)  # True = block the keys that are not chosen

    @property
    def name(self) -> str:
        return "only" if self.others else "block"

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        queries, keys = self.pairs(at)
        keys = ~keys if self.others else keys
        cells = self.cells(at)
        if not bool(((queries.any(1) & keys.any(1))[:, None] & cells).any()):
            return call
        tables = smallest(queries, (0,)), smallest(keys, (0,)), smallest(cells, (0, 1))
        # All layers with the same mask share the plan of the edited mask.
        key = ("blocked", *call.shape[2:], *map(read_contents, tables))
        mask = (_ALL if call.mask is None else call.mask).remember(
            key, lambda mask: knockout(*tables) if mask is _ALL else mask & knockout(*tables)
        )
        return dataclasses.replace(call, mask=mask.aligned(*call.shape[2:]))


def block(
    where: Choice,
    *,
    queries: Positions = None,
    keys: Positions = None,
    **chosen: Unpack[Chosen],
) -> Block:
    """Forbid these queries to attend to these keys; their other weights are normalised again. Geva et al. 2023.

    Args:
        where, heads, key_heads, examples, steps: as for every edit (`Edit`).
        queries, keys: a position, counted from the first real token of each example, negative numbers from the end of
            the prompt; a text, which selects its tokens wherever it occurs as whole words; a slice or a range; a
            function (label, position) -> bool; several of these in a list. None = all. Texts and functions need
            `tokens=`, and select tokens of the prompt.

    A query that may attend to no key any more gets an output of 0, and is counted (`changed.emptied`). This edit is a
    mask: the run stays on the same kernels as without it.
    """
    return Block(where, queries=queries, keys=keys, **chosen)


def only(
    where: Choice,
    *,
    queries: Positions = None,
    keys: Positions = None,
    **chosen: Unpack[Chosen],
) -> Block:
    """Allow these queries to attend only to these keys, and only where they could before. Otherwise as `block`."""
    return Block(where, queries=queries, keys=keys, **chosen, others=True)
