"""Finds the queries or keys that an edit selects: by position, by text, or by a function of both."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.edits.edit import Edit
from headwise.edits.where import Where
from headwise.errors import ArgumentError, brief
from headwise.text import Tokens
from headwise.text.places import find_positions, nearest

Positions = int | str | slice | range | Callable[[str, int], bool] | Sequence[Any] | None


@dataclasses.dataclass(frozen=True, eq=False)
class OfPairs(Edit):
    """The base class of edits that select queries and keys, and so pairs of both."""

    queries: Positions = dataclasses.field(default=None, kw_only=True)
    keys: Positions = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("queries", "keys"):
            check_positions(getattr(self, name), f"{self.name}: {name}")

    def pairs(self, at: Where) -> tuple[Tensor, Tensor]:
        """Return the selected queries, bool [B, Q], and the selected keys, bool [B, K]; True = selected."""
        return select_queries(self.queries, at, self.name), select_keys(self.keys, at, self.name)


def select_queries(choice: Positions, at: Where, what: str) -> Tensor:
    """Return which queries of a call `choice` selects, bool [B, Q]. `what` names the edit in messages."""
    return _flags(choice, at.queries, at.lengths, at.tokens, f"{what}: queries", at)


def select_keys(choice: Positions, at: Where, what: str) -> Tensor:
    """Return which keys of a call `choice` selects, bool [B, K]. `what` names the edit in messages."""
    return _flags(choice, at.keys, at.key_lengths, at.key_tokens, f"{what}: keys", at)


def check_positions(choice: Positions, what: str) -> None:
    """Raise ArgumentError for a `choice` of a kind that cannot select positions. `what` names it in messages."""
    parts = _parts(choice)
    for each in parts:
        if isinstance(each, bool) or not (each is None or isinstance(each, (int, str, slice, range)) or callable(each)):
            raise ArgumentError(
                f"{what} must be a position, a text, a slice, a range, a function (label, position) -> bool, a list of "
                f"these, or None for all. Received: {brief(each)}"
            )
        if isinstance(each, (slice, range)) and (each.step or 1) < 1:
            raise ArgumentError(f"{what}: the step of a slice must be at least 1. Received: {each}")
    if not parts or "" in parts:
        raise ArgumentError(f"{what}: expected at least one position. Received: {choice!r}")


def _parts(choice: Positions) -> list[Any]:
    parts: list[Any] = list(choice) if isinstance(choice, (list, tuple, set, frozenset)) else [choice]
    # An integer of NumPy or torch becomes an int.
    return [operator.index(x) if hasattr(x, "__index__") and not isinstance(x, bool) else x for x in parts]


def _flags(
    choice: Positions, places: Tensor, lengths: Tensor, tokens: Sequence[Tokens] | None, what: str, at: Where
) -> Tensor:
    if choice is None:
        return places >= 0
    found = torch.zeros_like(places, dtype=torch.bool)
    for each in _parts(choice):
        if isinstance(each, str) or callable(each):
            found |= _named(each, places, tokens, what, at)
            continue
        flags = _numbered(each, places, lengths)
        found |= flags
        if at.share is not None:  # the position may belong to a row of another process
            flags = _numbered(each, torch.arange(int(lengths.max()), device=places.device)[None], lengths)
        longest = int(lengths.max())
        numbers = f"the longest prompt of {at.site} has {longest} tokens, numbered 0 … {longest - 1}"
        at.met.note(what, brief(each), bool(flags.any()), f"{what}: {numbers}. Received: {each}")
    return found


def _numbered(each: Any, places: Tensor, lengths: Tensor) -> Tensor:
    if isinstance(each, int):
        return (places >= 0) & (places == (each if each >= 0 else lengths[:, None] + each))
    first, last = _bound(each.start, 0, lengths), _bound(each.stop, 2**40, lengths)
    inside = (places >= first[:, None]) & (places < last[:, None]) & (places >= 0)
    return inside & ((places - first[:, None]) % (each.step or 1) == 0)


def _bound(bound: int | None, default: int, lengths: Tensor) -> Tensor:
    if bound is None:
        return torch.full_like(lengths, default)
    return (lengths + bound).clamp(min=0) if bound < 0 else torch.full_like(lengths, bound)


def _named(each: Any, places: Tensor, tokens: Sequence[Tokens] | None, what: str, at: Where) -> Tensor:
    if tokens is None:
        raise ArgumentError(
            f"{what}: the tokens that {at.site} reads are not known. Received: {brief(each)}. Pass tokens= to "
            'headwise.edit: a tokenizer, names, or {"source": ..., "target": ...} for an encoder-decoder'
        )
    found = torch.zeros_like(places, dtype=torch.bool)
    some = False
    for b, one in enumerate(tokens):
        wanted = find_positions(each, one, at.normal)
        some = some or bool(wanted)
        if wanted:
            found[b] = torch.isin(places[b], torch.tensor(wanted, device=places.device))
    missing = "" if some else f"{what}: {brief(each)} is not among the tokens. {nearest(each, tokens)}"
    at.met.note(what, brief(each), some, missing)
    return found
