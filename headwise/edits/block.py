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


_ALL = window(None, None).owned()  # the mask of a call without a mask: all pairs of query and key are allowed


@dataclasses.dataclass(frozen=True, eq=False)
class Block(OfPairs):
    """The edit that `block` and `only` return: it forbids pairs of queries and keys by a mask."""

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
        # Layers with the same mask get the same edited mask object, so what kernels compute from it is computed once.
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
        queries, keys: which queries and keys are selected: a position, counted from the first real token of each
            example (a negative number counts from the end of the prompt); a slice or a range of positions; a text,
            which selects its tokens wherever it occurs as whole words; a function (label, position) -> bool, where the
            label is the token's text; a list of these; or None = all. Texts and functions need `tokens=` of
            `headwise.edit`, and select tokens of the prompt.

    A query that may attend to no key any more gets an output of 0, and `changed.emptied` counts it. This edit is a
    mask: attention runs on the same kernels as without the edit.
    """
    return Block(where, queries=queries, keys=keys, **chosen)


def only(
    where: Choice,
    *,
    queries: Positions = None,
    keys: Positions = None,
    **chosen: Unpack[Chosen],
) -> Block:
    """Let these queries attend only to these keys, where the model's own mask allows it. Arguments as for `block`."""
    return Block(where, queries=queries, keys=keys, **chosen, others=True)
