"""Which queries or keys an edit means: by position, by text, or by a predicate."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.edits.where import Where
from headwise.errors import ArgumentError, brief
from headwise.text import Tokens
from headwise.text.places import nearest, places_of

Positions = int | str | slice | range | Callable[[str, int], bool] | Sequence[Any] | None


def queries_of(choice: Positions, at: Where, what: str) -> Tensor:
    """The queries that a choice means, bool [B, Q]."""
    return _flags(choice, at.queries, at.lengths, at.tokens, f"{what}: queries", at)


def keys_of(choice: Positions, at: Where, what: str) -> Tensor:
    """The keys that a choice means, bool [B, K]."""
    return _flags(choice, at.keys, at.key_lengths, at.key_tokens, f"{what}: keys", at)


def check_positions(choice: Positions, what: str) -> None:
    """Raise ArgumentError for a choice that cannot mean positions."""
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
    # Whole numbers of NumPy and torch, too.
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
        if at.share is not None:  # the place may be another process's
            flags = _numbered(each, torch.arange(int(lengths.max()), device=places.device)[None], lengths)
        longest = int(lengths.max())
        at.met.note(
            what, brief(each), bool(flags.any()),
            functools.partial(_out_of_range, what, at.site, longest, each),
        )  # fmt: skip
    return found


def _out_of_range(what: str, site: str, longest: int, each: Any) -> str:
    return f"{what}: the longest prompt of {site} has {longest} tokens, numbered 0 … {longest - 1}. Received: {each}"


def _numbered(each: Any, places: Tensor, lengths: Tensor) -> Tensor:
    if isinstance(each, int):
        return (places >= 0) & (places == (each if each >= 0 else lengths[:, None] + each))
    first = _bound(each.start, 0, lengths)
    last = torch.full_like(lengths, 2**40) if each.stop is None else _bound(each.stop, 0, lengths)
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
        wanted = places_of(each, one, at.normal)
        some = some or bool(wanted)
        if wanted:
            found[b] = torch.isin(places[b], torch.tensor(wanted, device=places.device))
    at.met.note(
        what, brief(each), some, lambda: f"{what}: {brief(each)} is not among the tokens. {nearest(each, tokens)}"
    )
    return found
