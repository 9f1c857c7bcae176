"""Finds a text among the tokens of an example."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headwise.text import Tokens


def places_of(each: Any, tokens: Tokens, normal: Callable[[str], str]) -> list[int]:
    """The tokens of one example that a text or a predicate (label, position) means.

    A text is looked for as it stands, as whole words. If it is not there, then without capitals, accents and spaces,
    which some tokenizers drop; then as the label of a token. `normal` is what the tokenizer makes of a text.
    """
    if callable(each):
        return [i for i, label in enumerate(tokens.labels) if each(label, i)]
    spans = [*_spans(each, tokens.text)] or [*_loose_spans(normal(each), tokens.text)]
    found = [
        i for i, (a, b) in enumerate(tokens.offsets) if b > a and any(a < end and b > begin for begin, end in spans)
    ]
    return found or [i for i, label in enumerate(tokens.labels) if label == each]


def nearest(each: Any, tokens: Sequence[Tokens]) -> str:
    """What is said of a text that is not there."""
    if not isinstance(each, str):
        return "It is true of none of them"
    words = dict.fromkeys(word for one in tokens for word in (*one.text.split(), *one.labels))
    near = difflib.get_close_matches(each, list(words), n=3, cutoff=0.3)
    return f"The nearest: {', '.join(map(repr, near))}" if near else f"There is: {tokens[0].text[:60]!r}"


def _spans(each: str, text: str) -> Iterator[tuple[int, int]]:
    """Where a text stands as whole words."""
    start = 0
    while each and (at := text.find(each, start)) >= 0:
        start = at + max(1, len(each))
        whole = (at == 0 or not _joins(text[at - 1], each[0])) and (
            start >= len(text) or not _joins(each[-1], text[start])
        )
        if whole:
            yield at, at + len(each)


def _loose_spans(each: str, text: str) -> Iterator[tuple[int, int]]:
    """Where it stands as whole words without capitals, accents and spaces."""
    folded = [(letter, i) for i, letter in enumerate(text) for letter in _folded(letter)]
    wanted, plain = "".join(map(_folded, each)), "".join(letter for letter, _ in folded)
    start = 0
    while wanted and (at := plain.find(wanted, start)) >= 0:
        start = at + 1
        begin, end = folded[at][1], folded[at + len(wanted) - 1][1] + 1
        whole = (begin == 0 or not _joins(text[begin - 1], text[begin])) and (
            end >= len(text) or not _joins(text[end - 1], text[end])
        )
        if whole:
            yield begin, end


def _folded(letter: str) -> str:
    return "".join(
        each for each in unicodedata.normalize("NFD", letter.casefold())
        if not each.isspace() and not unicodedata.combining(each)
    )  # fmt: skip


def _joins(left: str, right: str) -> bool:
    """Whether two characters are inside of one word."""
    return left.isalnum() and right.isalnum()
