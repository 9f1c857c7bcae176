"""Finds a text among the tokens of an example: all occurrences (edits), or one (figures, `seen[...]`, commands)."""

from __future__ import annotations

import difflib
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headwise.errors import ArgumentError, shortened
from headwise.text.tokens import Tokens

Place = int | str  # the position of a token, or its text: "it"; "it:2" = the second "it"

LISTED = 8  # the maximum number of positions in a message


def find_position(place: Place, tokens: Tokens | Sequence[str] | None, name: str) -> int:
    """Return the position of the token that `place` (a position or a text) means. A position is returned unchecked.

        find_position("animal", tokens, "row")    the token of this text, as `find_positions` finds it
        find_position("it:2", tokens, "row")      the second of several tokens "it"

    Args:
        tokens: the tokens of one example, or only their labels; None = unknown.
        name: the name of the argument, for messages. An option, such as "--row", is shown as on the command line.

    Raises:
        ArgumentError: a text that does not occur, occurs several times (the message says where), or is several tokens
            long.
    """
    if not isinstance(place, str):
        return place
    received = f"Received: {_written(name, place)}"
    if tokens is None:
        raise ArgumentError(f"{name}: expected a number, because the tokens are not known. {received}")
    tokens = tokens if isinstance(tokens, Tokens) else Tokens.of_names(tokens)
    found, which = _numbered(place, tokens)
    if which and len(found) < which:
        text = place.rpartition(":")[0]
        raise ArgumentError(f"{name}: {text!r} occurs {len(found)} time{'s' * (len(found) > 1)}. {received}")
    if not found:
        raise ArgumentError(f"{name}: {place!r} is not among the tokens. {nearest(place, [tokens])}")
    if which is None and len(found) > 1:
        firsts = [each[0] for each in found]
        raise ArgumentError(
            f"{name}: {place!r} occurs at {_listed(firsts)}. Choose one: {_written(name, firsts[0])}, the same as "
            f"{_written(name, f'{place}:1')}; or {_written(name, firsts[-1])}, the same as "
            f"{_written(name, f'{place}:{len(found)}')}. {received}"
        )
    first, *others = found[(which or 1) - 1]
    if others:
        labels = ", ".join(tokens.labels[i] for i in (first, *others))
        raise ArgumentError(
            f"{name}: {place!r} is {1 + len(others)} tokens ({labels}), at {_listed([first, *others])}. Choose one: "
            f"{_written(name, first)}. {received}"
        )
    return first


def find_positions(each: Any, tokens: Tokens, normal: Callable[[str], str] = str) -> list[int]:
    """Return the positions of all tokens that `each` means.

    `each` is a text ("it", or "it:2": the second "it"), or a function of (label, position) that returns True for these
    tokens. `normal`: see `occurrences`.
    """
    if callable(each):
        return [i for i, label in enumerate(tokens.labels) if each(label, i)]
    found, which = _numbered(each, tokens, normal)
    return sorted({i for one in (found[which - 1 : which] if which else found) for i in one})


def _numbered(text: str, tokens: Tokens, normal: Callable[[str], str] = str) -> tuple[list[list[int]], int | None]:
    """Find a text, or for "it:2" the text before the colon; return (its occurrences, the number of the chosen one)."""
    found = occurrences(text, tokens, normal)
    if not found and (numbered := re.fullmatch(r"(.+):([1-9]\d{0,8})", text, re.DOTALL)):
        others = occurrences(numbered[1], tokens, normal)
        return others, int(numbered[2]) if others else None
    return found, None


def occurrences(text: str, tokens: Tokens, normal: Callable[[str], str] = str) -> list[list[int]]:
    """Find all occurrences of a text. Returns for each, in order, the list of the positions of its tokens.

    The text is searched as it is written, as whole words. If it does not occur, `normal(text)` is searched without
    regard to capitals, accents and spaces, which some tokenizers drop; then a token with this label. `normal` rewrites
    a text as the tokenizer does.
    """
    spans = [*_spans(text, tokens.text)] or [*_spans(normal(text), tokens.text, _folded)]
    found = [[i for i, (a, b) in enumerate(tokens.offsets) if b > a and a < end and b > begin] for begin, end in spans]
    found = [each for place, each in enumerate(found) if each and each not in found[:place]]
    return found or [[i] for i, label in enumerate(tokens.labels) if label == text]


def nearest(each: Any, tokens: Sequence[Tokens]) -> str:
    """Return the end of an error message: what occurs instead of `each`, a text or function that matched no token."""
    if not isinstance(each, str):
        return "It is true of none of them"
    words = dict.fromkeys(word for one in tokens for word in (*one.text.split(), *one.labels))
    said = tokens[0].text or " ".join(tokens[0].labels)
    near = difflib.get_close_matches(each, list(words), n=3, cutoff=0.3)
    return f"The nearest: {', '.join(map(repr, near))}" if near else f"There is: {shortened(said, 60)!r}"


def _written(name: str, place: Place) -> str:
    """Show an argument as it is written in Python (name=value), or on the command line."""
    if not name.startswith("-"):
        return f"{name}={place!r}"
    text = str(place)
    return f'{name} "{text}"' if "'" in text and not set(text) & set('"$`\\!') else f"{name} {shlex.quote(text)}"


def _listed(places: Sequence[int]) -> str:
    shown = [str(place) for place in places[:LISTED]]
    if len(places) > LISTED:
        return f"{', '.join(shown)} and {len(places) - LISTED:,} more places"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _spans(each: str, text: str, folded: Callable[[str], str] = str) -> Iterator[tuple[int, int]]:
    """Yield the (begin, end) of each occurrence of `each` in `text` as whole words; `folded` is applied to both."""
    letters = [(letter, i) for i, original in enumerate(text) for letter in folded(original)]
    wanted, plain = "".join(map(folded, each)), "".join(letter for letter, _ in letters)
    start = 0
    while wanted and (at := plain.find(wanted, start)) >= 0:
        begin, end = letters[at][1], letters[at + len(wanted) - 1][1] + 1
        whole = (begin == 0 or not _joins(text[begin - 1], text[begin])) and (
            end >= len(text) or not _joins(text[end - 1], text[end])
        )
        if whole:
            yield begin, end
        start = at + (len(wanted) if whole else 1)


def _folded(letter: str) -> str:
    """Return a letter in lower case without accents; "" for a space."""
    return "".join(
        each for each in unicodedata.normalize("NFD", letter.casefold())
        if not each.isspace() and not unicodedata.combining(each)
    )  # fmt: skip


def _joins(left: str, right: str) -> bool:
    """Return whether two neighbouring characters are inside one word."""
    return left.isalnum() and right.isalnum()
