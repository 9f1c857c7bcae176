"""Which queries or keys an edit means: by position, by text, or by a predicate."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.edits.where import Where
from headwise.errors import ArgumentError, brief
from headwise.text import Tokens

Positions = int | str | slice | range | Callable[[str, int], bool] | Sequence[Any] | None


def queries_of(choice: Positions, at: Where, what: str) -> Tensor:
    """The queries that a choice means, bool [B, Q]."""
    return _flags(choice, at.queries, at.lengths, at.tokens, f"{what}: queries", at)


def keys_of(choice: Positions, at: Where, what: str) -> Tensor:
    """The keys that a choice means, bool [B, K]."""
    return _flags(choice, at.keys, at.key_lengths, at.key_tokens, f"{what}: keys", at)


def check_positions(choice: Positions, what: str) -> None:
    """Raise ArgumentError for a choice that cannot mean positions."""
    for each in _parts(choice):
        if isinstance(each, bool) or not (each is None or isinstance(each, (int, str, slice, range)) or callable(each)):
            raise ArgumentError(
                f"{what} must be a position, a text, a slice, a range, a function (label, position) -> bool, a list of "
                f"these, or None for all. Received: {brief(each)}"
            )


def _parts(choice: Positions) -> list[Any]:
    return list(choice) if isinstance(choice, (list, tuple, set, frozenset)) else [choice]


def _flags(
    choice: Positions, places: Tensor, lengths: Tensor, tokens: Sequence[Tokens] | None, what: str, at: Where
) -> Tensor:
    if choice is None:
        return places >= 0
    found = torch.zeros_like(places, dtype=torch.bool)
    for each in _parts(choice):
        if isinstance(each, str) or callable(each):
            found |= _named(each, places, tokens, what)
        else:
            found |= _numbered(each, places, lengths, what, at)
    return found


def _numbered(each: Any, places: Tensor, lengths: Tensor, what: str, at: Where) -> Tensor:
    if isinstance(each, int):
        longest = int(lengths.max())
        if at.step == 0 and not -longest <= each < longest:
            raise ArgumentError(
                f"{what}: the longest example has {longest} tokens, numbered 0 … {longest - 1}. Received: {each}"
            )
        return places == (each if each >= 0 else lengths[:, None] + each)
    first = _bound(each.start, 0, lengths)
    last = torch.full_like(lengths, 2**40) if each.stop is None else _bound(each.stop, 0, lengths)
    step = each.step or 1
    if step < 1:
        raise ArgumentError(f"{what}: the step of a slice must be at least 1. Received: {each}")
    inside = (places >= first[:, None]) & (places < last[:, None]) & (places >= 0)
    return inside & ((places - first[:, None]) % step == 0)


def _bound(bound: int | None, default: int, lengths: Tensor) -> Tensor:
    if bound is None:
        return torch.full_like(lengths, default)
    return (lengths + bound).clamp(min=0) if bound < 0 else torch.full_like(lengths, bound)


def _named(each: Any, places: Tensor, tokens: Sequence[Tokens] | None, what: str) -> Tensor:
    if tokens is None:
        raise ArgumentError(
            f"{what}: the tokens are not known. Received: {brief(each)}. Pass tokens= to headwise.edit: a tokenizer, "
            "or what it returned"
        )
    if len(tokens) != len(places) and len(places) % len(tokens):
        raise ArgumentError(f"{what}: the batch has {len(places)} examples. Received: tokens of {len(tokens)}")
    times = len(places) // len(tokens)  # beams, or sequences of one prompt
    rows = [_places_of(each, one) for one in tokens]
    if not any(rows):
        raise ArgumentError(f"{what}: {brief(each)} is not among the tokens. {_nearest(each, tokens)}")
    found = torch.zeros_like(places, dtype=torch.bool)
    for b in range(len(places)):
        wanted = rows[b // times]
        if wanted:
            found[b] = torch.isin(places[b], torch.tensor(wanted, device=places.device))
    return found


def _places_of(each: Any, tokens: Tokens) -> list[int]:
    """The tokens of one example that a text or a predicate means."""
    if callable(each):
        return [i for i, label in enumerate(tokens.labels) if each(label, i)]
    text, spans, start = tokens.text, [], 0
    while text and (at := text.find(each, start)) >= 0:
        start = at + max(1, len(each))
        whole = (at == 0 or not _joins(text[at - 1], each[0])) and (
            start >= len(text) or not _joins(each[-1], text[start])
        )
        if whole:
            spans.append((at, at + len(each)))
    by_text = [
        i for i, (a, b) in enumerate(tokens.offsets) if b > a and any(a < end and b > begin for begin, end in spans)
    ]
    return by_text or [i for i, label in enumerate(tokens.labels) if label == each]


def _joins(left: str, right: str) -> bool:
    """Whether two characters are inside of one word."""
    return left.isalnum() and right.isalnum()


def _nearest(each: Any, tokens: Sequence[Tokens]) -> str:
    if not isinstance(each, str):
        return "It is true of none of them"
    words = dict.fromkeys(word for one in tokens for word in (*one.text.split(), *one.labels))
    near = difflib.get_close_matches(each, list(words), n=3, cutoff=0.3)
    return f"The nearest: {', '.join(map(repr, near))}" if near else f"There is: {brief(tokens[0].text)}"
